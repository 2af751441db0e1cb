#!/bin/bash
WORLD_SIZE=8
MP=2
python -m torch.distributed.launch --nproc_per_node $WORLD_SIZE --nnodes 2 --node_rank 0 \
    --master_addr localhost --master_port 6000 \
    pretrain_gpt2.py \
    --model-parallel-size $MP --num-layers 40 --hidden-size 1536 --num-attention-heads 16 \
    --batch-size 8 --seq-length 1024 --max-position-embeddings 1024 \
    --checkpoint-activations --fp16 --vocab-size 50257 \
    --train-iters 320000 --distributed-backend nccl --lr 0.00015 --warmup .01
