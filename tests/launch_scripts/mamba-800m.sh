#!/bin/bash
export TRITON_CACHE_DIR="./triton-cache/"
PATTERN="M-M-M--M-*M-M-M-M--*M-M-M-M-*M--M-M-M-*M-M--M-M-"
torchrun --nproc_per_node 8 pretrain_mamba.py --hybrid-layer-pattern ${PATTERN} \
  --hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups 8 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type none \
  --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm \
  --attention-dropout 0.0 --hidden-dropout 0.0 --bf16 --use-distributed-optimizer \
  --overlap-param-gather --overlap-grad-reduce \
  --micro-batch-size 4 --global-batch-size 32 --vocab-size 256000 --data-path ${1}
