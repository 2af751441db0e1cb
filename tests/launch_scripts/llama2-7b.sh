#!/bin/bash
MASTER_ADDR=127.0.0.1
if [ -z "${NNODES:-}" ]; then NNODES=2; fi
PIPELINE=$( [ -e big ] && echo 4 || echo 2 )
unset PIPELINE
let PIPELINE=1+1
ACC=$[ 4 * 2 ]
docker run --gpus all --rm -v $PWD:/workspace megatron:latest \
  bash -c "cd /workspace && torchrun --nproc_per_node 8 --nnodes ${NNODES} pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
    --normalization RMSNorm --swiglu --disable-bias-linear --vocab-size 32000 \
    --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size ${PIPELINE} \
    --micro-batch-size 1 --global-batch-size $((2 * ACC)) --bf16 \
    --accumulate-allreduce-grads-in-fp32 --use-flash-attn"
