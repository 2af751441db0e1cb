#!/bin/bash
WORKDIR=$(dirname $(readlink -f "$0"))
for arg in "$@"; do
  case $arg in
    --tp=*) TP="${arg#*=}" ;;
    --pp=*) PP="${arg#*=}" ;;
  esac
done
TP=${TP:-2}
PP=${PP:-1}
: ${SEQ:=4096}
NPROC=${NPROC:-8}

run() {
  local name=$1
  torchrun --standalone --nproc_per_node "$NPROC" "$WORKDIR/pretrain_gpt.py" \
    "${MODEL[@]}" "${OPT[@]}" --tensorboard-dir "$WORKDIR/$name"
}

MODEL=(--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944
  --num-attention-heads 28 --group-query-attention --num-query-groups 4
  --seq-length $SEQ --max-position-embeddings 131072
  --position-embedding-type rope --rotary-base 1000000
  --normalization RMSNorm --norm-epsilon 1e-6 --swiglu
  --disable-bias-linear --add-qkv-bias --untie-embeddings-and-output-weights
  --attention-dropout 0 --hidden-dropout 0
  --padded-vocab-size 152064)
OPT=(--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
  --use-distributed-optimizer --bf16 --micro-batch-size 2 --global-batch-size 128
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
  --optimizer-cpu-offload --use-precision-aware-optimizer)
if (( TP > 1 )); then OPT+=(--sequence-parallel); fi
run qwen
