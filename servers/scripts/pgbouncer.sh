# Starts PgBouncer in transaction mode before the PostgreSQL at $SERVER_UPSTREAM, for every database of it.
# Named statements are not kept: this is the setting that clients have to be ready for.
set -eu
cat > /tmp/pgbouncer.ini <<CONF
[databases]
* = host=$SERVER_UPSTREAM port=5432
[pgbouncer]
listen_addr = *
listen_port = 6432
unix_socket_dir =
auth_type = scram-sha-256
auth_file = /tmp/users.txt
admin_users = $SERVER_USER
pool_mode = transaction
max_prepared_statements = 0
max_client_conn = 1000
default_pool_size = 20
# A server that comes back is used at once.
server_login_retry = 1
dns_max_ttl = 1
CONF
printf '"%s" "%s"\n' "$SERVER_USER" "$SERVER_PASSWORD" > /tmp/users.txt
chown postgres /tmp/pgbouncer.ini /tmp/users.txt
exec setpriv --reuid=postgres --regid=postgres --init-groups pgbouncer /tmp/pgbouncer.ini
