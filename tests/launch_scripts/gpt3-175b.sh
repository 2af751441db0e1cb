#!/bin/bash
# 175 B parameters on 16 nodes: bash run.sh CHECKPOINTS VOCAB MERGES DATA
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS=8
NODES=16
WORLD=$(($GPUS*$NODES))
SAVE_TO=$1 # checkpoints
VOCAB=$2
MERGES=$3
DATA=$4

LAUNCH=(
    --nproc_per_node $GPUS
    --nnodes $NODES
    --master_addr localhost
    --master_port 6000
)
SHAPE=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # or flash, fused, unfused
)
OPTIMISER=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9 --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine
    --lr-warmup-fraction .001 --lr-decay-iters 430000
)
PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
FILES=(--data-path $DATA --vocab-file $VOCAB --merge-file $MERGES --split 949,50,1
    --save $SAVE_TO --load $SAVE_TO --save-interval 10000 --eval-interval 1000 --eval-iters 10)

torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${SHAPE[@]} \
    ${OPTIMISER[@]} \
    ${PARALLEL[@]} \
    ${FILES[@]}
