#!/bin/bash
# weak scaling: 35 stages over 280 nodes
PP=35
TP=8
GBS=2240
MBS=1
NLS=105
HS=20480
NAH=128
NNODES=280
EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 1 "
PARAMS=" \
    --num-layers ${NLS} --hidden-size ${HS} --num-attention-heads ${NAH} \
    --micro-batch-size ${MBS} --global-batch-size ${GBS} \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
    --seq-length 2048 --max-position-embeddings 2048 \
    --DDP-impl local --fp16 --scatter-gather-tensors-in-pipeline --loss-scale 8192 \
    --vocab-size 51200 --log-interval 1 --eval-iters -1 --data-impl mmap ${EXTRA}"
CMD="python -u /megatron/pretrain_gpt.py ${PARAMS}"
srun -N $NNODES --ntasks-per-node=8 --output=logs/%x_%j.log sh -c "${CMD}"
exit 0
