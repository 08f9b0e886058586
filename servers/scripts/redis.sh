# Starts Redis or Valkey, as named by $SERVER_PROGRAM. Data survives a restart of the container.
set -eu
mkdir -p /srv/redis
exec "$SERVER_PROGRAM" --bind 0.0.0.0 --port "$SERVER_PORT" --protected-mode no --dir /srv/redis \
    --appendonly "${SERVER_APPENDONLY:-yes}" --save ''
