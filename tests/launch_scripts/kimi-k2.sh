#!/bin/bash
# shellcheck disable=SC2086
mkdir -p logs && cd /workspace
NNODES=32 PP=16
tmp=$(mktemp) && trap 'rm -f "$tmp"' EXIT
printf '%s\n' "starting" >> logs/out.txt
common_args() {
  cat <<EOF
--num-layers 61 --hidden-size 7168
EOF
}
SIZE_ARGS="--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 64"
MLA_ARGS="--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 \
--qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm --rotary-base 50000"
MOE_ARGS="--num-experts 384 --moe-router-topk 8 --moe-ffn-hidden-size 2048 \
--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*1+[1]*60) \
--moe-router-score-function sigmoid --moe-router-enable-expert-bias \
--moe-router-topk-scaling-factor 2.827 --moe-token-dispatcher-type alltoall"
if [[ $PP -ge 16 && ! ( $NNODES -lt 4 ) ]]; then
  SPLIT="--decoder-last-pipeline-num-layers 1"
else
  SPLIT=""
fi
timeout 3600 torchrun --nnodes=$NNODES --nproc_per_node=8 -- pretrain_gpt.py $SIZE_ARGS $MLA_ARGS $MOE_ARGS $SPLIT \
  --seq-length 4096 --max-position-embeddings 131072 --position-embedding-type rope \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --hidden-dropout 0 --attention-dropout 0 --vocab-size 163840 \
  --pipeline-model-parallel-size $PP --expert-model-parallel-size 16 --use-distributed-optimizer \
  --micro-batch-size 1 --global-batch-size 1024 --bf16 --optimizer muon > logs/run.txt 2>&1 &
wait
