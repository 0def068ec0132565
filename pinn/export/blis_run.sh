#!/bin/sh
# {title}: step times of {engine} by
# checkpoint {checkpoint}, for BLIS ({state}).
# What BLIS shall serve goes behind it:
#   ./run.sh --workload-spec LOAD.yaml
# BLIS names its program (blis on the path by default). Coefficients are those of the loads of
# loads.csv that are nearest to the specification's; LOAD names one of them to take its own, or {mix}.
{note}set -eu
here=$(cd "$(dirname "$0")" && pwd)
fail() {{ echo "run.sh: $*" >&2; exit 2; }}

spec='' preset='' servers=1 rate='' closed='' input='' output='' delay='' name=''
for word; do
  value=$word
  case $word in
    --gpu-memory-utilization*) fail "$word has no effect beside --total-kv-blocks {blocks}:" \
      "export the configuration with another gpu_memory_utilization" ;;
    --*=*) name=${{word%%=*}} value=${{word#*=}} ;;
    --*) name=$word; continue ;;
  esac
  case $name in
    --workload-spec) spec=$value ;;
    --workload) [ "$value" = distribution ] || preset=$value ;; # that of the flags
    --num-instances) servers=$value ;;
    --rate) rate=$value ;;
    --concurrency) closed=$value ;;
    --prompt-tokens) input=$value ;;
    --output-tokens) output=$value ;;
    --cache-signal-delay) delay=given ;;
  esac
  name=''
done
[ -z "$spec" ] || rate='' closed='' input='' output='' # the file's count

choices='{choices}'
case ${{LOAD:-}} in
  '') ;;
{lost}  load) fail "there is no LOAD=$LOAD: use $choices" ;; # the name of the column
  *) cut -d, -f1 "$here/loads.csv" | grep -qxF -e "$LOAD" ||
    fail "there is no LOAD=$LOAD: use $choices" ;;
esac
# BLIS looks its own loads up in the file of its defaults.
defaults=$here/coefficients.yaml
if [ -n "$preset" ]; then
  defaults=${{BLIS_DEFAULTS:-defaults.yaml}}
  [ -r "$defaults" ] || fail "--workload $preset is a load of BLIS's own defaults.yaml:" \
    "set BLIS_DEFAULTS to that file, or run this in its folder"
  spec=$defaults
fi
[ -r "${{spec:-/dev/null}}" ] || fail "$spec cannot be read: give --workload-spec a file"
found=$(awk -v table="$here/loads.csv" -v load="${{LOAD:-}}" -v otherwise={otherwise} \
  -v servers="$servers" -v preset="$preset" -v rate="$rate" -v closed="$closed" -v input="$input" \
  -v output="$output" -f "$here/pick.awk" "${{spec:-/dev/null}}")
[ -n "$found" ] || fail "the number of concurrent requests is unknown, and the coefficients fitted to all" \
  "loads have step time errors of up to {error} %: set LOAD to $choices"
alpha=${{found%% *}} found=${{found#* }}
echo "run.sh: coefficients of ${{found#* }}" | fold -s -w 100 >&2
# How soon routers hear of caches matters among several servers alone, and costs BLIS most of its time.
if [ "$servers$delay" = 1 ]; then set -- --cache-signal-delay 0 "$@"; fi
exec "${{BLIS:-blis}}" run \
{flags} \
  --hardware-config "$here/hardware.json" \
  --model-config-folder "$here" \
  --defaults-filepath "$defaults" \
  --alpha-coeffs "$alpha" \
  --beta-coeffs "${{found%% *}}" \
  "$@"
