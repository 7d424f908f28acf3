#!/usr/bin/env bash
# Writes the recipes of docs/results/mini.md, "Composed", that the zoo has not: composed.sh DEV, where DEV is cnsd-sts-dev.txt.
set -euo pipefail

# What filters are fitted on: the dev part's sentences, without their scores.
awk -F '[|][|]' '{ print $2; print $3 }' "$1" > sentences.txt

recipe() { # NAME LINE…
    name=$1
    shift
    printf '%s\n' "base: mini" "$@" > "$name.yaml"
}

whitened() { # NAME LINE…
    recipe "$@"
    st-reba build "$1.yaml" "$1.model" --no-golden --overwrite > /dev/null
    st-reba postfilter "$1.model" sentences.txt "$1.safetensors" --kind whiten --r 1 --overwrite
    grep -q '^stages:' "$1.yaml" || echo "stages:" >> "$1.yaml"
    echo "- filter: {file: $1.safetensors}" >> "$1.yaml"
}

mean=("method: classical" "pooling: mean")
lower=("${mean[@]}" "stages:" "- read: {layers: [0, 1], join: concat}")
nosink=("method: nosink" "setting: mask0-bidir" "k: 4" "pooling: mean")

recipe lower "${lower[@]}"
whitened lower-whitened "${lower[@]}"
whitened embeddings-whitened "${mean[@]}" "stages:" "- read: {layers: 0}"
whitened classical-whitened "${mean[@]}"
whitened reba-whitened "method: reba" "pooling: mean"
whitened nosink-whitened "${nosink[@]}"

recipe rerouted "${mean[@]}" "stages:" "- layers: {kind: rerouted, k: all}"
recipe prepended "${mean[@]}" "stages:" "- prepend: {layers: 4}"
recipe both "${mean[@]}" "stages:" "- layers: {kind: rerouted, k: all}" "- prepend: {layers: 4}"
recipe prompteol-zh "method: prompteol" "template: 这句话：“{text}”的意思用一个词概括是：“"
recipe contrastive-zh "method: prompteol" "stages:" "- ensemble: {templates: contrastive-zh}"
recipe metaeol-zh "method: prompteol" "stages:" "- ensemble: {templates: metaeol-zh}"
