#!/usr/bin/env bash
# Tries docker-compose.yml for real, from a clean clone of HEAD: `make compose-test`.
#
#   COMPOSE_CYCLES   how often everything is brought up, killed and taken down   1
#   COMPOSE          the command                       docker-compose, else `docker compose`
#
# A cycle: up in a random order until CartPole is solved and everybody went home; up again with an endless run; crash
# each service in turn (its restart policy brings it back), `docker kill` it (`up` brings it back), scale the workers;
# down. Exits 1 at the first thing that does not come about in time.
set -euo pipefail

cycles=${COMPOSE_CYCLES:-1}
if [ -z "${COMPOSE:-}" ]; then
  COMPOSE=docker-compose
  command -v docker-compose >/dev/null || COMPOSE="docker compose"
fi
progress_seconds=60
recovery_seconds=60
solve_seconds=300

project=seedmqtest # its images stay, as cache of the next test
[ -z "$(docker ps -aq --filter "label=com.docker.compose.project=$project")" ] ||
  { echo "compose_test: another test is running, or one was killed: $COMPOSE -p $project down -v" >&2; exit 1; }
folder=$(mktemp -d)
clone=$folder/seedmq
unset SEEDMQ_CONFIG SEEDMQ_RUN SEEDMQ_WORKERS SEEDMQ_ENVS_PER_WORKER
export SEEDMQ_CONFIG=cartpole_vtrace SEEDMQ_RUN=solve SEEDMQ_WORKERS=2

compose() { (cd "$clone" && $COMPOSE -p "$project" "$@"); }
say() { echo "compose_test: $*"; }
now() { date +%s%N; }
seconds_since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", (b - a) / 1e9 }'; }
containers() { docker ps -aq --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$1"; }
state() { docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' "$1"; }

finish() {
  code=$?
  if [ "$code" != 0 ]; then
    say "FAILED; the last lines of each service:"
    compose ps || true
    compose logs --tail=25 || true
  fi
  compose down -v --remove-orphans -t 20 >/dev/null 2>&1 || true
  rm -rf "$folder"
  exit "$code"
}
trap finish EXIT

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
  local limit=$1 what=$2 began
  began=$(now)
  shift 2
  until "$@"; do
    if awk -v s="$(seconds_since "$began")" -v l="$limit" 'BEGIN { exit !(s > l) }'; then
      say "not within $limit s: $what"
      return 1
    fi
    sleep 0.3
  done
}

# A number of the run's summary.json, which stands in the volume; 0 where there is none yet.
summary() {
  local value
  value=$(docker cp "$(containers learner)":/runs/"$SEEDMQ_RUN"/summary.json - 2>/dev/null | tar -xO 2>/dev/null |
    sed -n "s/^ \"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" || true)
  echo "${value:-0}"
}

# Versions are never used twice, so a larger one is a new update, also after a restart.
past_version() { [ "$(summary version)" -gt "$1" ]; }
progress() { wait_for "$recovery_seconds" "updates after $1" past_version "$(($(summary version) + 5))"; }

workers() {
  compose exec -T broker seedmq status --broker tcp://127.0.0.1:5555 --keys /run/seedmq/fleet --json 2>/dev/null |
    sed -n 's/.*"workers_total": \([0-9]*\).*/\1/p'
}
workers_are() { [ "$(workers || true)" = "$1" ]; }
restarted() { [ "$(docker inspect -f '{{.RestartCount}}' "$1")" -gt "$2" ] && [[ "$(state "$1")" == running* ]]; }
exited() { [[ "$(state "$1")" == exited* ]]; }

up_in_random_order() {
  local service order
  order=$(shuf -e redis broker learner worker | tr '\n' ' ')
  compose up init >/dev/null 2>&1
  say "starting in the order $order"
  for service in $order; do
    compose up -d --no-deps "$service" >/dev/null 2>&1
  done
}

check_ports() {
  local published
  published=$(docker ps --filter "label=com.docker.compose.project=$project" --format '{{.Ports}}' | grep -- '->' || true)
  [ -z "$published" ] || { say "published: $published"; return 1; }
  compose exec -T redis redis-cli ping 2>&1 | grep -q NOAUTH || { say "Redis answers without a password"; return 1; }
}

check_solved() {
  local id
  for id in $(containers learner) $(containers worker); do
    wait_for "$solve_seconds" "learner and workers end by themselves" exited "$id"
    [ "$(state "$id")" = "exited 0" ] || { say "container $id: $(state "$id")"; return 1; }
  done
  [ "$(summary stop_reason)" = solved ] || { say "stop_reason is $(summary stop_reason)"; return 1; }
  say "solved after $(summary seconds) s of training, $(summary agent_steps) agent steps," \
    "$(summary agent_steps_per_second) a second, mean return $(summary episode_return_mean)"
}

# Ends every process below the container's init, as a crash would.
crash() {
  local id began restarts
  id=$(containers "$1" | head -n 1)
  restarts=$(docker inspect -f '{{.RestartCount}}' "$id")
  began=$(now)
  docker exec "$id" sh -c 'kill -9 -1' || true
  wait_for "$recovery_seconds" "$1 restarts" restarted "$id" "$restarts"
  progress "the crash of $1"
  wait_for "$recovery_seconds" "all workers are back after the crash of $1" workers_are "$SEEDMQ_WORKERS"
  say "$1 crashed: training again, all workers back, after $(seconds_since "$began") s"
}

# `docker kill` counts as a stop by hand, which no restart policy undoes: `up` does.
kill_by_hand() {
  local began
  began=$(now)
  docker kill "$(containers "$1" | head -n 1)" >/dev/null
  compose up -d >/dev/null 2>&1
  progress "docker kill of $1"
  wait_for "$recovery_seconds" "all workers are back after docker kill of $1" workers_are "$SEEDMQ_WORKERS"
  say "$1 killed by hand: training again, all workers back, after $(seconds_since "$began") s"
}

scale() {
  local began
  began=$(now)
  compose up -d --scale worker="$1" >/dev/null 2>&1
  wait_for "$recovery_seconds" "$1 workers are served" workers_are "$1"
  progress "scaling to $1 workers"
  say "scaled to $1 workers after $(seconds_since "$began") s"
}

check_gone() {
  local left
  left=$(docker ps -aq --filter "label=com.docker.compose.project=$project")
  left+=$(docker volume ls -q --filter "label=com.docker.compose.project=$project")
  left+=$(docker network ls -q --filter "label=com.docker.compose.project=$project")
  [ -z "$left" ] || { say "left behind: $left"; return 1; }
}

cycle() {
  local began service
  SEEDMQ_CONFIG=cartpole_vtrace SEEDMQ_RUN=solve
  began=$(now)
  up_in_random_order
  wait_for "$progress_seconds" "first update" past_version 0
  say "first update seen $(seconds_since "$began") s after the first start"
  check_ports
  check_solved

  SEEDMQ_CONFIG=configs/endless.yaml SEEDMQ_RUN=endless
  compose up -d >/dev/null 2>&1
  wait_for "$progress_seconds" "first update of the second run" past_version 0
  for service in worker redis broker learner; do
    crash "$service"
  done
  for service in worker redis broker learner; do
    kill_by_hand "$service"
  done
  scale 3
  scale "$SEEDMQ_WORKERS"

  began=$(now)
  compose down -v -t 20 >/dev/null 2>&1
  check_gone
  say "down after $(seconds_since "$began") s"
}

git clone -q "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)" "$clone"
sed -e 's/^  solved_return:.*/  solved_return: null/' -e 's/^  max_seconds:.*/  max_seconds: 3600/' \
  "$clone/configs/cartpole_vtrace.yaml" > "$clone/configs/endless.yaml"
chmod -R a+rX "$folder"

began=$(now)
compose build >"$folder/build.log" 2>&1 || { tail -n 30 "$folder/build.log"; exit 1; }
say "images built in $(seconds_since "$began") s"
for number in $(seq "$cycles"); do
  say "cycle $number of $cycles"
  cycle
done
say "passed: $cycles of $cycles cycles"
