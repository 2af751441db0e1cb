#!/bin/bash
DATA_PATH=$1
SCALE="8B" # or "56B"
case "${SCALE}" in
    "8B")
        TP=2
        PATTERN="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
        WIDTH=4096
        HEADS=32
        FFN=21504
        ;;
    "56B")
        TP=8
        WIDTH=8192
        ;;
    *)
        echo "no such scale"
        exit 1
        ;;
esac
LENGTH=8192
SAMPLES=$(( 15 * 10 / 3 * 1000000 ))  # tokens / LENGTH

options=" \
       --tensor-model-parallel-size ${TP} \
       --sequence-parallel \
       --pipeline-model-parallel-size 1 \
       --use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce \
       --untie-embeddings-and-output-weights \
       --position-embedding-type none \
       --is-hybrid-model \
       --hybrid-override-pattern ${PATTERN} \
       --num-layers ${#PATTERN} \
       --hidden-size ${WIDTH} \
       --ffn-hidden-size ${FFN} \
       --num-attention-heads ${HEADS} --group-query-attention --num-query-groups 8 \
       --mamba-state-dim 128 --mamba-head-dim 64 --mamba-num-groups 8 \
       --seq-length ${LENGTH} --max-position-embeddings ${LENGTH} \
       --train-samples ${SAMPLES} \
       --data-path ${DATA_PATH} --split 99,1,0 \
       --tokenizer-type TikTokenizer --tiktoken-pattern v2 \
       --micro-batch-size 1 --global-batch-size 768 \
       --squared-relu --attention-dropout 0.0 --hidden-dropout 0.0 \
       --disable-bias-linear --normalization RMSNorm --bf16 \
       --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"

torchrun --nproc_per_node 8 --nnodes 8 ../../pretrain_mamba.py ${options}
