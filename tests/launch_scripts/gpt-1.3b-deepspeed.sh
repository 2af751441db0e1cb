#!/bin/bash
set -ex
BASE=/data/pile
TP=${TP:-2}
PP=${PP:-1}
ZERO=${ZERO:-1}
MICRO=4
GLOBAL=256
CONFIG=ds_config_z${ZERO}.json
HOSTS=/job/hostfile

cat <<EOT > $CONFIG
{
  "train_batch_size" : $GLOBAL,
  "train_micro_batch_size_per_gpu": $MICRO,
  "steps_per_print": 1,
  "zero_optimization": { "stage": $ZERO },
  "bf16": { "enabled": true }
}
EOT

ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --no-pipeline-parallel ${ds_args}"
ds_args=" --deepspeed_config=$CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO ${ds_args}"
ds_args=" --deepspeed-activation-checkpointing ${ds_args}"

deepspeed --num_gpus 8 --num_nodes 4 --hostfile $HOSTS pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --seq-length 2048 --loss-scale 12 --max-position-embeddings 2048 \
    --micro-batch-size $MICRO --global-batch-size $GLOBAL \
    --train-iters 1000 --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine \
    --data-path $BASE/pile_text_document --vocab-file $BASE/gpt2-vocab.json \
    --merge-file $BASE/gpt2-merges.txt --data-impl mmap --split 949,50,1 \
    --tokenizer-type GPT2BPETokenizer \
    --checkpoint-activations --bf16 \
    $ds_args
