# What compose_test.sh asks and checks; sourced by it. Needs of the host: docker, git and the usual text tools.
# shellcheck shell=bash disable=SC2154

compose() { (cd "$clone" && $COMPOSE -p "$project" "$@"); }
with_metrics() { compose -f docker-compose.yml -f docker/metrics.yml "$@"; }
say() { echo "compose_test: $*"; }
now() { date +%s%N; }
seconds_since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", (b - a) / 1e9 }'; }
# Images have Compose's labels too, and what somebody else runs from them; a number only its containers have.
ours=(--filter "label=com.docker.compose.project=$project" --filter label=com.docker.compose.container-number)
containers() { docker ps -aq "${ours[@]}" --filter "label=com.docker.compose.service=$1"; }
state() { docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' "$1"; }
image() { docker inspect -f '{{.Image}}' "$(containers "$1" | head -n 1)"; }
addresses() { docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}' "$1"; }

# A port of the loopback on which nobody listens.
free_port() {
  local port
  while port=$((RANDOM % 10000 + 20000)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

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

# summary.json of the run, which stands in the volume.
run_summary() { docker cp "$(containers learner)":/runs/"$SEEDMQ_RUN"/summary.json - 2>/dev/null | tar -xO 2>/dev/null || true; }

# One of its numbers; 0 where there is none yet.
summary() {
  local value
  value=$(run_summary | sed -n "s/^ \"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p")
  echo "${value:-0}"
}

# Versions are never used twice, so a larger one is a new update, also after a restart.
past_version() { [ "$(summary version)" -gt "$1" ]; }
progress() { wait_for "$recovery_seconds" "updates after $1" past_version "$(($(summary version) + 5))"; }

status() {
  docker exec "$(containers broker)" seedmq status --broker tcp://127.0.0.1:5555 --keys /run/seedmq/fleet --json 2>/dev/null || true
}
workers_are() { [ "$(status | sed -n 's/.*"workers_total": \([0-9]*\).*/\1/p')" = "$1" ]; }

# The component that everything waits for, and why.
bottleneck() {
  status | grep -o '"bottleneck": {[^}]*}' | sed -n '1s/.*"component": "\([^"]*\)".*"why": "\([^"]*\)".*/\1 (\2)/p' || true
}

# Agent steps a second.
rate() {
  local began steps
  steps=$(summary agent_steps)
  began=$(now)
  sleep "$rate_seconds"
  awk -v a="$steps" -v b="$(summary agent_steps)" -v s="$(seconds_since "$began")" 'BEGIN { printf "%.0f", (b - a) / s }'
}

restarted() { [ "$(docker inspect -f '{{.RestartCount}}' "$1")" -gt "$2" ] && [[ "$(state "$1")" == running* ]]; }
exited() { [[ "$(state "$1")" == exited* ]]; }

healthy() {
  local id
  for id in $(containers "$1"); do
    [ "$(docker inspect -f '{{.State.Health.Status}}' "$id")" = healthy ] || return 1
  done
}

# What a URL of this host answers.
get() {
  docker run --rm --network host --entrypoint python "$(image worker)" -c \
    'import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())' "$1" 2>/dev/null
}

answers() { get "$1" | grep -i "$2" >/dev/null; }
tensorboard_shows() {
  answers "http://127.0.0.1:$SEEDMQ_TENSORBOARD_PORT/data/plugin/scalars/tags" "\"$1/events\": {\"[a-z]"
}

check_images() {
  local base size extra
  base=$(docker image inspect -f '{{.Size}}' "${PYTHON_IMAGE:-python:3.11-slim}")
  for service in broker worker; do
    size=$(docker image inspect -f '{{.Size}}' "$(image "$service")")
    extra=$(((size - base) / 1000000))
    say "image of $service: $extra MB beyond its base"
    [ "$extra" -lt "$image_megabytes" ] || { say "that is $image_megabytes MB or more" && return 1; }
    ! docker run --rm --entrypoint python "$(image "$service")" -c 'import tensorflow' 2>/dev/null ||
      { say "TensorFlow is in it" && return 1; }
  done
  say "image of learner: $((($(docker image inspect -f '{{.Size}}' "$(image learner)") - base) / 1000000)) MB beyond its base"
  for service in worker learner; do
    docker run --rm --entrypoint pip "$(image "$service")" list --format=freeze --disable-pip-version-check \
      --exclude pip --exclude setuptools --exclude wheel --exclude seedmq | tr 'A-Z_' 'a-z-' >"$folder/packages"
    ! grep -vxFf "$clone/constraints.txt" "$folder/packages" || { say "not pinned in the image of $service" && return 1; }
  done
}

check_solved() {
  local id
  for id in $(containers learner) $(containers worker); do
    wait_for "$solve_seconds" "learner and workers end by themselves" exited "$id"
    [ "$(state "$id")" = "exited 0" ] || { say "container $id: $(state "$id")" && return 1; }
  done
  [ "$(summary stop_reason)" = solved ] || { say "stop_reason is $(summary stop_reason)" && return 1; }
  check_ledger
  say "solved after $(summary seconds) s of training, $(summary agent_steps) agent steps," \
    "$(summary agent_steps_per_second) a second, mean return $(summary episode_return_mean)"
}

check_ledger() {
  [ "$(run_summary | sed -n 's/^  "error": \([^,]*\),\{0,1\}$/\1/p')" = 0 ] ||
    { say "the ledger does not close: $(run_summary | sed -n '/"ledger"/,$p')" && return 1; }
}

# open_ports CONTAINER ARGUMENTS: what a container reaches.
open_ports() { docker exec -i "$1" python - "${@:2}" <"$clone/scripts/open_ports.py"; }

# Of all ports of all containers those that are documented listen, and who has no business with them does not get there.
check_ports() {
  local service id found published every
  for service in "${services[@]}"; do
    for id in $(containers "$service"); do
      every+=" $(addresses "$id")"
    done
  done
  docker run -d --rm --name "$outside" --network host --entrypoint sleep "$(image worker)" 600 >/dev/null
  for service in "${services[@]}"; do
    for id in $(containers "$service"); do
      for address in $(addresses "$id"); do
        found=$(open_ports "$outside" "$address" | sed 's/.* //' | sort -n | tr '\n' ' ')
        [ "$found" = "${listens[$service]} " ] || { say "$service listens on $found" && return 1; }
      done
    done
  done
  docker rm -f "$outside" >/dev/null
  published=$(docker ps "${ours[@]}" --format '{{.Ports}}' | tr ',' '\n' | grep -- '->' || true)
  [ "$published" = "127.0.0.1:$SEEDMQ_TENSORBOARD_PORT->6006/tcp" ] || { say "published: $published" && return 1; }

  docker run -d --rm --name "$outside" --network "$outside" --entrypoint sleep "$(image worker)" 600 >/dev/null
  # shellcheck disable=SC2086
  found=$(open_ports "$outside" $every --ports "$all_ports"
    open_ports "$outside" "$(docker network inspect -f '{{(index .IPAM.Config 0).Gateway}}' "$outside")" \
      --ports "$SEEDMQ_TENSORBOARD_PORT,$SEEDMQ_PUBLISH")
  docker rm -f "$outside" >/dev/null
  [ -z "$found" ] || { say "another network reaches $found" && return 1; }

  # shellcheck disable=SC2046
  found=$(open_ports "$(containers worker | head -n 1)" $(addresses "$(containers redis)") $(addresses "$(containers tensorboard)") \
    --ports "$all_ports"
    # shellcheck disable=SC2046
    open_ports "$(containers tensorboard)" $(addresses "$(containers redis)") $(addresses "$(containers broker)") --ports "$all_ports")
  [ -z "$found" ] || { say "a worker or TensorBoard reaches $found" && return 1; }
  compose exec -T redis redis-cli ping 2>&1 | grep NOAUTH >/dev/null || { say "Redis answers without a password" && return 1; }
  say "only documented ports listen, and only TensorBoard's is published, on the loopback"
}

# Everybody ends by himself within his time, and every transition is accounted for.
stop_in_order() {
  local service id
  compose stop -t 20 >/dev/null 2>&1
  for service in "${services[@]}"; do
    for id in $(containers "$service"); do
      case "$(state "$id")" in
      "exited 0" | "exited 143") ;;
      *) say "$service after a stop: $(state "$id")" && return 1 ;;
      esac
    done
  done
  check_ledger
}

check_gone() {
  local left
  left=$(docker ps -aq "${ours[@]}")
  left+=$(docker volume ls -q --filter "label=com.docker.compose.project=$project")
  left+=$(docker network ls -q --filter "label=com.docker.compose.project=$project")
  [ -z "$left" ] || { say "left behind: $left" && return 1; }
}

# Prometheus scrapes every role and has the rules; Grafana shows the dashboard.
check_metrics() {
  local query="http://127.0.0.1:$SEEDMQ_PROMETHEUS_PORT/api/v1"
  with_metrics up -d prometheus >/dev/null 2>&1
  wait_for "$healthy_seconds" "Prometheus is healthy" healthy prometheus
  wait_for "$healthy_seconds" "it scrapes every role" answers "$query/query?query=sum(up)" "\"$((SEEDMQ_WORKERS + 2))\"\]"
  answers "$query/rules?type=alert" '"type":"alerting"' || { say "it has no alert rules" && return 1; }
  say "Prometheus scrapes broker, learner and $SEEDMQ_WORKERS workers"
  if docker image inspect "$grafana_image" >/dev/null 2>&1 || docker pull -q "$grafana_image" >/dev/null 2>&1; then
    with_metrics up -d grafana >/dev/null 2>&1
    wait_for "$healthy_seconds" "Grafana is healthy" healthy grafana
    wait_for "$healthy_seconds" "it has the dashboard" \
      answers "http://127.0.0.1:$SEEDMQ_GRAFANA_PORT/api/search?type=dash-db" '"title":"[^"]*seedmq'
    say "Grafana shows the dashboard"
  else
    say "NOT TRIED: Grafana, whose image cannot be had here"
  fi
  with_metrics rm -sf prometheus grafana >/dev/null 2>&1
}
