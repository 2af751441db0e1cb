#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=1
DIST="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NUM_NODES \
    --node_rank 0
"
T5="
    --encoder-num-layers 12 \
    --decoder-num-layers 12 \
    --hidden-size 768 \
    --num-attention-heads 12 \
    --kv-channels 64 \
    --ffn-hidden-size 3072 \
    --encoder-seq-length 512 \
    --decoder-seq-length 128 \
    --max-position-embeddings 512 \
    --micro-batch-size 64 \
    --global-batch-size 512 \
    --lr 0.0001 --train-iters 1000000 --lr-warmup-fraction .01 --clip-grad 1.0 \
    --bf16 \
    --vocab-extra-ids 100 \
    --init-method-std 0.015 \
    --transformer-impl transformer_engine \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 1 \
    --attention-backend auto \
"
DATA="
    --data-path $4 \
    --vocab-file $3 \
    --tokenizer-type BertWordPieceCase \
    --split 99982,9,9 \
"
torchrun $DIST pretrain_t5.py \
    $T5 \
    $DATA \
    --log-interval 100 \
    --distributed-backend nccl \
    --save $1 \
    --load $1 \
