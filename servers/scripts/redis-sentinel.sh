# Starts three sentinels, on $SERVER_PORT and the two ports after it, and a primary and its replica on the next two. Programs
# on the host reach them under the addresses that they announce: the same ports of 127.0.0.1. `sh /srv/redis-sentinel/start
# PORT` starts a killed process again.
set -eu
folder=/srv/redis-sentinel
primary=$((SERVER_PORT + 3))
replica=$((SERVER_PORT + 4))
ports="$primary $replica $SERVER_PORT $((SERVER_PORT + 1)) $((SERVER_PORT + 2))"
mkdir -p "$folder"
cat > "$folder/start" <<'START'
set -eu
folder=/srv/redis-sentinel/$1
mode=
if [ -e "$folder/sentinel" ]; then
    mode=--sentinel
fi
# The servers write to their configuration who is primary, and whom they know.
# shellcheck disable=SC2086
exec redis-server "$folder/conf" $mode
START
for port in $ports; do
    if [ ! -e "$folder/$port/conf" ]; then
        mkdir -p "$folder/$port"
        cat > "$folder/$port/new" <<CONF
bind 0.0.0.0
protected-mode no
port $port
dir $folder/$port
pidfile $folder/$port/pid
logfile $folder/$port/log
daemonize yes
CONF
        if [ "$port" -lt "$primary" ]; then
            : > "$folder/$port/sentinel"
            cat >> "$folder/$port/new" <<CONF
sentinel announce-ip 127.0.0.1
sentinel monitor checkpoint 127.0.0.1 $primary 2
sentinel down-after-milliseconds checkpoint 1000
sentinel failover-timeout checkpoint 3000
CONF
        else
            cat >> "$folder/$port/new" <<CONF
appendonly yes
save ""
replica-announce-ip 127.0.0.1
repl-diskless-sync-delay 0
CONF
        fi
        if [ "$port" = "$replica" ]; then
            echo "replicaof 127.0.0.1 $primary" >> "$folder/$port/new"
        fi
        mv "$folder/$port/new" "$folder/$port/conf"
    fi
done
stop() {
    for port in $ports; do
        kill "$(cat "$folder/$port/pid")" || true
    done
    for port in $ports; do
        while redis-cli -p "$port" ping > /dev/null 2>&1; do sleep 0.05; done
    done
    exit 0
}
trap stop TERM
for port in $ports; do
    sh "$folder/start" "$port"
done
# In the background, so that the signal is handled at once.
while :; do
    sleep 3600 &
    wait $! || true
done
