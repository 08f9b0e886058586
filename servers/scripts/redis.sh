# Starts Redis or Valkey, whichever $SERVER_PROGRAM names. What is written outlives a restart of the container.
set -eu
mkdir -p /srv/redis
exec "$SERVER_PROGRAM" --bind 0.0.0.0 --protected-mode no --dir /srv/redis --appendonly yes --save ''
