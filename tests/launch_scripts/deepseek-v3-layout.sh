#!/bin/bash
# pipeline of 16 ranks with two chunks each, as a layout
export NNODES=${NNODES:-256} NODE_RANK=${NODE_RANK:-0}
LAYOUT='Et*3|(tt|)*29m|L'
GPUS=$((NNODES * 8))
ARGS=(
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
  --seq-length 4096 --max-position-embeddings 163840 --vocab-size 129280
  --position-embedding-type rope --rotary-base 10000 --rope-type yarn
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128
  --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm
  --hidden-dropout 0 --attention-dropout 0
  --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048
  --moe-shared-expert-intermediate-size 2048 --moe-layer-freq "([0]*3+[1]*58)"
  --moe-router-score-function sigmoid --moe-router-enable-expert-bias
  --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-topk-scaling-factor 2.5
  --moe-grouped-gemm --moe-token-dispatcher-type flex --moe-enable-deepep
  --mtp-num-layers 1
)
PLAN=(
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 16
  --pipeline-model-parallel-layout "$LAYOUT"
  --expert-model-parallel-size 64 --expert-tensor-parallel-size 1
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
  --overlap-moe-expert-parallel-comm --delay-wgrad-compute
  --micro-batch-size 1 --global-batch-size $((GPUS * 4))
  --bf16 --fp8-format e4m3 --fp8-recipe blockwise --fp8-param-gather
  --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
  --main-grads-dtype fp32 --recompute-granularity selective --recompute-modules mla_up_proj mlp
)
torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --nproc-per-node=8 pretrain_gpt.py "${ARGS[@]}" "${PLAN[@]}"
