#!/bin/bash
CHECKPOINT="none"
TOKENIZER="MOCK"
while [[ $# -gt 0 ]]; do
    case $1 in
        --checkpoint)
            CHECKPOINT="$2"
            shift 2
            ;;
        -h|--help)
            echo "Usage: $0 [--checkpoint DIR]"
            exit 0
            ;;
        *)
            echo "unknown: $1"
            exit 1
            ;;
    esac
done
if [ ! -d "$CHECKPOINT" ]; then
    echo "no checkpoint"
    exit 1
fi
GPUS=${GPUS:-8}
NODES=${NODES:-2}
WORLD=$(($GPUS*$NODES))
TP=1
EP=8
PP=1
MODEL=(
    --no-masked-softmax-fusion --transformer-impl transformer_engine
    --untie-embeddings-and-output-weights --no-rope-fusion --normalization RMSNorm
    --num-layers 24 --hidden-size 2880 --ffn-hidden-size 2880 --num-attention-heads 64
    --group-query-attention --num-query-groups 8 --kv-channels 64
    --seq-length 4096 --max-position-embeddings 131072 --use-mcore-models
    --rotary-percent 1.0 --rope-type rope --position-embedding-type rope --rotary-base 150000
    --no-bias-gelu-fusion --export-force-local-attention --no-bias-dropout-fusion
    --quick-geglu --glu-linear-offset 1.0 --softmax-type learnable --window-attn-skip-freq 2
    --activation-func-clamp-value 7.0 --window-size 127,0 --enable-gpt-oss
    --attention-dropout 0 --hidden-dropout 0 --vocab-size 201088
)
MOE=(
    --num-experts 32 --moe-router-topk 4 --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-3 --moe-grouped-gemm --moe-token-dispatcher-type alltoall
    --moe-ffn-hidden-size 2880 --moe-router-dtype fp32 --moe-z-loss-coeff 1e-3
)
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py \
    ${MODEL[@]} ${MOE[@]} --mock-data --bf16 --micro-batch-size 1 --global-batch-size 128 \
    --tensor-model-parallel-size $TP --expert-model-parallel-size $EP --pipeline-model-parallel-size $PP \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --recompute-granularity selective --recompute-modules core_attn moe_act
