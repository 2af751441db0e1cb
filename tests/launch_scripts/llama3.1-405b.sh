#!/usr/bin/env bash
# 14 replicas of 72 GPUs
: "${NNODES:=126}"
: "${GPUS_PER_NODE:=8}"
readonly SEQ=8192
declare -i TP=8 PP=9 CP=1
args=(
  --use-mcore-models --transformer-impl transformer_engine
  --num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248
  --num-attention-heads 128 --group-query-attention --num-query-groups 8
  --seq-length "$SEQ" --max-position-embeddings 131072
  --position-embedding-type rope --rotary-base 500000 --use-rope-scaling
  --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear
  --untie-embeddings-and-output-weights --hidden-dropout 0.0 --attention-dropout 0.0
  --vocab-size=128256
)
args+=(
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
  --num-virtual-stages-per-pipeline-rank=7
  --context-parallel-size $CP --sequence-parallel
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
  --recompute-granularity full --recompute-method block --recompute-num-layers 1
)
batch() { args+=(--micro-batch-size "1" --global-batch-size "$(( NNODES * GPUS_PER_NODE / TP / PP * 18 ))"); }
batch
[[ ${FP8:-no} == yes ]] && args+=(--fp8-format hybrid --fp8-recipe tensorwise)
exec torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" \
  "${MEGATRON:-/workspace/megatron}/pretrain_gpt.py" "${args[@]}" --bf16 --mock-data "$@"
