#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
#export NCCL_IB_TIMEOUT=${NCCL_IB_TIMEOUT:-19}
OUT=${1:-"runs/llama3_8b"}
TOKENIZER=${2:-"MOCK"} # a folder, or MOCK
mkdir -p "$(dirname "$OUT")"

NODES=1; PER_NODE=8
RANK_OF_NODE=${NODE_RANK:-0}
PROGRAM="/opt/megatron-lm/pretrain_gpt.py"
TP_SIZE=2
CP_SIZE=1
DTYPE="fp8"
LENGTH=8192

MODEL=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length $LENGTH --max-position-embeddings $LENGTH
    --position-embedding-type rope --rotary-base 500000 --rotary-percent 1.0
    --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --normalization RMSNorm
    --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p
    --untie-embeddings-and-output-weights --disable-bias-linear --use-mcore-models
)
TRAINING=(
    --micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000
    --lr 0.00015 --min-lr 0.00001 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1
    --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss
    --manual-gc --empty-unused-memory-level 1 --exit-duration-in-mins 235
)
PRECISION=()
if [[ "$DTYPE" == "fp8" ]]; then
    PRECISION+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-amax-compute-algo max"
        "--fp8-param-gather"
    )
fi
PARALLEL=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size 4
    --sequence-parallel  # with TP_SIZE=2
)
PARALLEL+=("--use-distributed-optimizer" "--overlap-grad-reduce" "--overlap-param-gather")
DATA=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256"
           "--split '99,1,0'" "--no-mmap-bin-files" "--num-workers 1")
else
    DATA+=("--tokenizer-type HuggingFaceTokenizer" "--tokenizer-model $TOKENIZER")
fi
if [ ! -f "$PROGRAM" ]; then
    echo "Error: $PROGRAM not found"
    exit 1
fi
torchrun --nproc_per_node $PER_NODE --nnodes $NODES --node_rank $RANK_OF_NODE \
    "$PROGRAM" \
    ${MODEL[@]} ${TRAINING[@]} ${PRECISION[@]} ${PARALLEL[@]} ${DATA[@]} \
    --save "$OUT" --tensorboard-dir "$OUT/tb" --log-throughput
set +x
