#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
PER_NODE=8
NODES=16
CKPT=$1
VOCAB=$2
DIST=(
    --nproc_per_node $PER_NODE 
    --nnodes $NODES 
    --master_addr localhost 
)
BERT=(
    --num-layers 24 
    --hidden-size 1024 
    --num-attention-heads 16 
    --seq-length 512 
    --max-position-embeddings 512 
    --attention-backend auto # flash/fused/unfused/local
)
TRAINING=(
    --micro-batch-size 4 
    --global-batch-size 32 
    --fp16
    --lr 0.0001
    --weight-decay 1e-2 
    --clip-grad 1.0 
    --weight-decay 1e-2 
    --clip-grad 1.0 
)
PARALLEL=(
	--tensor-model-parallel-size 8 
	--pipeline-model-parallel-size 2 
)
torchrun ${DIST[@]} pretrain_bert.py ${BERT[@]} ${TRAINING[@]} ${PARALLEL[@]} \
    --data-path $3 --vocab-file $VOCAB --tokenizer-type BertWordPieceLowerCase --split 949,50,1 \
    --save $CKPT --load $CKPT
