#!/usr/bin/env bash
# Tries docker-compose.yml for real, from a clean clone of HEAD: `make compose-test`.
#
#   COMPOSE_CYCLES   how often it is brought up in a random order, seen to train and stopped   3
#   COMPOSE_PARTS    what of it                                    solve endless cycles
#   COMPOSE          the command                                   docker-compose, else `docker compose`
#
# First `up` until CartPole is solved and everybody went home. Then an endless run: health, who reaches which port, more
# workers, a worker of another network, Prometheus and Grafana; each service crashes (its restart policy brings it back) and
# is killed by hand (`up` brings it back). Then the cycles. Exits 1 at the first thing that does not come about in time.
set -euo pipefail

cycles=${COMPOSE_CYCLES:-3}
parts=${COMPOSE_PARTS:-solve endless cycles}
if [ -z "${COMPOSE:-}" ]; then
  COMPOSE=docker-compose
  command -v docker-compose >/dev/null || COMPOSE="docker compose"
fi
progress_seconds=60
recovery_seconds=60
healthy_seconds=90
solve_seconds=300
rate_seconds=15
image_megabytes=400 # of the small image, beyond its base

project=seedmqtest # its images stay, as cache of the next test
outside=$project-outside
services=(redis broker learner worker tensorboard)
# What listens in a container. Only tensorboard's port is published, on the loopback.
declare -A listens=([redis]=6379 [broker]="5555 5556 9464" [learner]=9464 [worker]=9464 [tensorboard]=6006)
all_ports=5555,5556,6006,6379,9464
grafana_image=${GRAFANA_IMAGE:-grafana/grafana:12.1.1} # as in docker/metrics.yml

source_folder=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
clone=$folder/seedmq
# shellcheck source=scripts/compose_checks.sh
. "$source_folder/compose_checks.sh"
[ -z "$(docker ps -aq "${ours[@]}")" ] ||
  { say "another test is running, or one was killed: $COMPOSE -p $project down -v" >&2 && rmdir "$folder" && exit 1; }

unset SEEDMQ_CONFIG SEEDMQ_RUN SEEDMQ_WORKERS SEEDMQ_ENVS_PER_WORKER
SEEDMQ_TENSORBOARD_PORT=$(free_port)
SEEDMQ_PUBLISH=$(free_port)
SEEDMQ_PROMETHEUS_PORT=$(free_port)
SEEDMQ_GRAFANA_PORT=$(free_port)
export SEEDMQ_TENSORBOARD_PORT SEEDMQ_PUBLISH SEEDMQ_PROMETHEUS_PORT SEEDMQ_GRAFANA_PORT

finish() {
  code=$?
  if [ "$code" != 0 ]; then
    say "FAILED; the last lines of each service:"
    compose ps || true
    compose logs --tail=25 || true
  fi
  docker rm -f "$outside" >/dev/null 2>&1 || true
  docker network rm "$outside" >/dev/null 2>&1 || true
  with_metrics down -v --remove-orphans -t 20 >/dev/null 2>&1 || true
  rm -rf "$folder"
  exit "$code"
}
trap finish EXIT

solve() {
  local began
  export SEEDMQ_CONFIG=cartpole_vtrace SEEDMQ_RUN=solve SEEDMQ_WORKERS=2
  began=$(now)
  compose up -d >/dev/null 2>&1
  wait_for "$progress_seconds" "first update" past_version 0
  say "up: first update seen after $(seconds_since "$began") s"
  check_images
  check_solved
  wait_for "$recovery_seconds" "TensorBoard shows the curves of the run" tensorboard_shows solve
}

without_end() {
  export SEEDMQ_CONFIG=configs/endless.yaml SEEDMQ_RUN=endless SEEDMQ_WORKERS=2 SEEDMQ_ENVS_PER_WORKER=32
}

# More workers while it trains: more steps a second, or a name for what holds them up.
scale() {
  local before after found
  before=$(rate)
  compose up -d --scale worker="$1" >/dev/null 2>&1
  wait_for "$recovery_seconds" "$1 workers are served" workers_are "$1"
  progress "scaling to $1 workers"
  after=$(rate)
  found=$(bottleneck)
  say "$SEEDMQ_WORKERS workers: $before steps a second; $1 workers: $after; bottleneck: ${found:-none named}"
  if awk -v a="$before" -v b="$after" 'BEGIN { exit !(b < 1.1 * a) }'; then
    case "$found" in
    environments* | broker* | inference* | store* | training* | messages*) ;;
    *) say "no faster with $1 workers, and nothing is named for it" && return 1 ;;
    esac
  fi
  compose up -d --scale worker="$SEEDMQ_WORKERS" >/dev/null 2>&1
  wait_for "$recovery_seconds" "$SEEDMQ_WORKERS workers are served" workers_are "$SEEDMQ_WORKERS"
}

# A worker in a network of its own comes in by the one port that docker/publish.yml opens, with keys of its own.
join_from_outside() {
  local gateway found
  gateway=$(docker network inspect -f '{{(index .IPAM.Config 0).Gateway}}' "$outside")
  compose -f docker-compose.yml -f docker/publish.yml up -d >/dev/null 2>&1
  compose run --rm -T init "$outside" 2>/dev/null | tar -x --no-same-owner -C "$folder"
  docker run -d --name "$outside" --network "$outside" --user "$(id -u):$(id -g)" \
    -v "$folder/$outside:/keys:ro" -v "$clone/configs:/app/configs:ro" "$(image worker)" \
    worker --config "$SEEDMQ_CONFIG" --set security.keys=/keys --set "broker.connect=tcp://$gateway:$SEEDMQ_PUBLISH" >/dev/null
  wait_for "$recovery_seconds" "the worker of another network is served" workers_are "$((SEEDMQ_WORKERS + 1))"
  found=$(open_ports "$outside" "$gateway" --ports "$SEEDMQ_TENSORBOARD_PORT,$SEEDMQ_PUBLISH")
  [ "$found" = "$gateway $SEEDMQ_PUBLISH" ] || { say "another network reaches ${found:-no port}" && return 1; }
  docker rm -f "$outside" >/dev/null
  compose up -d >/dev/null 2>&1
  wait_for "$recovery_seconds" "its lease ends" workers_are "$SEEDMQ_WORKERS"
  progress "the port is closed again"
  say "a worker of another network joined by port $SEEDMQ_PUBLISH"
}

# Training goes on, all workers are back, TensorBoard shows it.
healed() {
  progress "$1"
  wait_for "$recovery_seconds" "all workers are back after $1" workers_are "$SEEDMQ_WORKERS"
  wait_for "$recovery_seconds" "TensorBoard shows the run after $1" tensorboard_shows "$SEEDMQ_RUN"
}

# Ends every process below the container's init, as a crash would.
crash() {
  local id began restarts
  id=$(containers "$1" | head -n 1)
  restarts=$(docker inspect -f '{{.RestartCount}}' "$id")
  began=$(now)
  docker exec "$id" sh -c 'kill -9 -1' || true
  wait_for "$recovery_seconds" "$1 restarts" restarted "$id" "$restarts"
  healed "the crash of $1"
  say "$1 crashed: training, with all workers, after $(seconds_since "$began") s"
}

# `docker kill` counts as a stop by hand, which no restart policy undoes: `up` does.
kill_by_hand() {
  local began
  began=$(now)
  docker kill "$(containers "$1" | head -n 1)" >/dev/null
  compose up -d >/dev/null 2>&1
  healed "docker kill of $1"
  say "$1 killed by hand: training, with all workers, after $(seconds_since "$began") s"
}

endless() {
  local service found
  without_end
  docker network create "$outside" >/dev/null
  compose up -d >/dev/null 2>&1
  wait_for "$progress_seconds" "first update of the second run" past_version 0
  for service in "${services[@]}"; do
    wait_for "$healthy_seconds" "$service is healthy" healthy "$service"
  done
  found=$(status | grep -o '"environments": [0-9][0-9]*' | sort -u)
  [ "$found" = "\"environments\": $SEEDMQ_ENVS_PER_WORKER" ] || { say "workers have $found" && return 1; }
  say "every service is healthy; $SEEDMQ_WORKERS workers with $SEEDMQ_ENVS_PER_WORKER environments each"
  check_ports
  scale 8
  join_from_outside
  check_metrics
  for service in "${services[@]}"; do
    crash "$service"
  done
  for service in "${services[@]}"; do
    kill_by_hand "$service"
  done
  stop_in_order
  with_metrics down -v -t 20 >/dev/null 2>&1
  check_gone
}

# Up in a random order until it trains; every other time a run that was stopped before goes on.
cycle() {
  local began order service version=0 # of the update that it has to get past
  began=$(now)
  order=$(shuf -e "${services[@]}" | tr '\n' ' ')
  compose up init >/dev/null 2>&1
  for service in $order; do
    compose up -d --no-deps "$service" >/dev/null 2>&1
  done
  [ "$(($1 % 2))" = 1 ] || version=$last_version
  wait_for "$progress_seconds" "an update after version $version, started in the order $order" past_version "$version"
  say "cycle $1 of $cycles: trains $(seconds_since "$began") s after the first start; order $order"
  compose stop -t 20 worker learner >/dev/null 2>&1 # v2: what was started with --no-deps knows nobody to stop after
  stop_in_order
  last_version=$(summary version)
  if [ "$(($1 % 2))" = 1 ]; then
    compose down -t 20 >/dev/null 2>&1
  else
    compose down -v -t 20 >/dev/null 2>&1
    check_gone
  fi
}

cycles() {
  local number
  without_end
  for number in $(seq "$cycles"); do
    cycle "$number"
  done
  compose down -v -t 20 >/dev/null 2>&1
  check_gone
  say "$cycles of $cycles cycles"
}

git clone -q "$(git -C "$source_folder" rev-parse --show-toplevel)" "$clone"
sed -e 's/^  solved_return:.*/  solved_return: null/' -e 's/^  max_seconds:.*/  max_seconds: 3600/' \
  "$clone/configs/cartpole_vtrace.yaml" > "$clone/configs/endless.yaml"
chmod -R a+rX "$folder"

began=$(now)
compose build >"$folder/build.log" 2>&1 || { tail -n 30 "$folder/build.log"; exit 1; }
say "$($COMPOSE version | head -n 1): images built in $(seconds_since "$began") s"
for part in $parts; do
  "$part"
done
say "passed: $parts"
