# Completion of the commands, options, presets and keys of plimsoll, plimsoll-run and plimsoll-calibrate for bash.  Commands
# and options are taken from the program's own --help, presets from its folder.
_plimsoll_presets() {
  local program folder
  program=$(readlink -f "$(command -v plimsoll)" 2>/dev/null) || return
  for folder in "${PLIMSOLL_CONFIGS:-}" "${program%/*}/../share/plimsoll/configs"; do
    [ -d "$folder/$1" ] || continue
    find "$folder/$1" -name '*.json' -printf '%f\n' | sed 's/\.json$//'
    return
  done
}

_plimsoll() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words at=1
  local -a command=("$1")
  # "plimsoll run" is plimsoll-run.
  if [[ $1 == plimsoll && $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} =~ ^(run|calibrate)$ ]]; then
    command=("plimsoll-${COMP_WORDS[1]}")
    at=2
  fi
  if [[ ${command[0]} != plimsoll-run ]]; then
    if [ "$COMP_CWORD" -eq "$at" ]; then
      words=$("${command[@]}" --help 2>/dev/null | sed -n '/^Subcommands:/,$ s/^  \([a-z][a-z]*\) .*/\1/p')
      mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$word")
      return
    fi
    command+=("${COMP_WORDS[at]}")
  fi
  # bash splits words at "=": --set zero.stage=3
  case $before in
    --model) words=$(_plimsoll_presets models) ;;
    --calibration | --base) words=$(_plimsoll_presets calibrations) ;;
    --cluster) words="8xh100 8xh200 8xb200 8xh800 8xa100-80 8xa100-40 8x4090 16xh100 64xh100 $(_plimsoll_presets clusters)" ;;
    --backend) words="cuda host" ;;
    --rank) words="hottest mean 0" ;;
    --set)
      words="engine= world_size= expert_parallel= micro_batch= sequence= gradient_accumulation= precision= zero.stage=
        moe.implementation= moe.leaf= recompute= attention= loss= offload.optimizer= offload.parameters= compile=
        expandable_segments= optimizer.implementation= routing.kind= zero.reduce_bucket_size="
      compopt -o nospace
      ;;
    *)
      if [[ $word == -* ]]; then
        words=$("${command[@]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u)
      else
        compopt -o default
        COMPREPLY=()
        return
      fi
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  case $before in --model | --cluster | --calibration | --base) compopt -o default ;; esac
}
complete -F _plimsoll plimsoll plimsoll-run plimsoll-calibrate
