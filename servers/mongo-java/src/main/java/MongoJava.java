import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;

import java.util.List;

/** A second stand-in for MongoDB, in memory. It listens on the port that its argument names. */
public final class MongoJava {
    /** Current drivers refuse the versions that the library has. */
    private static final class Version implements MongoVersion {
        @Override
        public List<Integer> getVersionArray() {
            return List.of(7, 0, 0);
        }

        @Override
        public int getWireVersion() {
            return 21;
        }
    }

    public static void main(String[] arguments) {
        MongoServer server = new MongoServer(new MemoryBackend().version(new Version()));
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        server.bind("0.0.0.0", Integer.parseInt(arguments[0]));
    }
}
