#!/bin/bash
# 16 nodes by mpirun
set -euo pipefail
usage() { echo "usage: $0 [-n nodes]"; exit 2; }
NODES=16
while getopts "n:h" opt; do
  case "$opt" in
    n) NODES="$OPTARG" ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
NP=$((NODES * 8))
HOSTFILE=${HOSTFILE:-hosts.txt}
model="--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
model+=" --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm"
model+=" --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights"
model+=" --seq-length 4096 --max-position-embeddings 4096 --attention-dropout 0 --hidden-dropout 0"
model+=" --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model"
plan="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel"
plan="$plan --use-distributed-optimizer --bf16 --micro-batch-size 1 --global-batch-size 512"
plan="${plan} --recompute-granularity selective --overlap-grad-reduce"
mpirun --allow-run-as-root -np "$NP" -npernode 8 --hostfile "$HOSTFILE" \
  -x NCCL_DEBUG=WARN -x PATH -bind-to none \
  python3 pretrain_gpt.py $model $plan --train-iters=100 --frobnicate
