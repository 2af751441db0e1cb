#!/bin/bash
NODES=${NODES:-32}
declare -A TP_OF=([small]=2 [large]=4)
CP=$(( NODES > 16 ? 2 : 1 ))
ARGS=$(cat <<'END'
END
)
TOTAL=$((2**5 * 8))
args=(--num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 64
  --kv-channels 128 --group-query-attention --num-query-groups 4 --qk-layernorm
  --seq-length 4096 --max-position-embeddings 40960 --position-embedding-type rope
  --rotary-base 1000000 --normalization RMSNorm --swiglu --disable-bias-linear
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
  --num-experts 128 --moe-ffn-hidden-size 1536 --moe-router-topk 8 --moe-grouped-gemm
  --moe-token-dispatcher-type alltoall --vocab-size 151936)
args+=(--tensor-model-parallel-size ${TP_OF[large]} --context-parallel-size $CP --cp-comm-type a2a
  --pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 11
  --decoder-last-pipeline-num-layers 11
  --expert-model-parallel-size 32 --expert-tensor-parallel-size 1 --sequence-parallel
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
args+=(--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather
  --micro-batch-size 1 --global-batch-size $TOTAL --cuda-graph-impl transformer_engine)
srun -N ${NODES} --ntasks-per-node=8 --gpus-per-node=8 \
  python -u pretrain_gpt.py "${args[@]}" --manual-gc --mock-data
