#! /bin/bash
# the smallest published GPT, data parallel over one node

N_GPU=8
MASTER="--master_addr localhost --master_port 6000"
DIST="--nproc_per_node $N_GPU --nnodes 1 --node_rank 0 $MASTER"
CKPT=checkpoints/gpt2_345m

python -m torch.distributed.launch $DIST \
       pretrain_gpt.py \
       --tensor-model-parallel-size 1 \
       --pipeline-model-parallel-size 1 \
       --num-layers 24 \
       --hidden-size 1024 \
       --num-attention-heads 16 \
       --micro-batch-size 8 \
       --global-batch-size 64 \
       --seq-length 1024 \
       --max-position-embeddings 1024 \
       --train-iters 500000 \
       --lr-decay-iters 320000 \
       --save $CKPT --load $CKPT \
       --data-path my-gpt2_text_document \
       --vocab-file gpt2-vocab.json \
       --merge-file gpt2-merges.txt \
       --tokenizer-type GPT2BPETokenizer \
       --data-impl mmap \
       --split 949,50,1 \
       --distributed-backend nccl \
       --lr 0.00015 \
       --min-lr 1.0e-5 \
       --lr-decay-style cosine \
       --weight-decay 1e-2 \
       --clip-grad 1.0 \
       --lr-warmup-fraction .01 \
       --activations-checkpoint-method uniform \
       --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10 \
       --DDP-impl torch --no-async-tensor-model-parallel-allreduce \
       --fp16
