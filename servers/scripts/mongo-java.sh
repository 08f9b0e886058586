# Starts the MongoDB of mongo-java-server. It keeps everything in memory.
set -eu
exec java -cp '/opt/checkpoint:/opt/checkpoint/*' MongoJava "$SERVER_PORT"
