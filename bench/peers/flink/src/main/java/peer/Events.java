package peer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The rows of a table that is joined, in memory as objects: see ../pack.py. */
final class Events {
    /** Bytes in front of the text. */
    private static final int HEAD = 28;

    private Events() {}

    static List<Event> read(Path path) throws IOException {
        List<Event> events = new ArrayList<>();
        try (var file = new java.io.BufferedInputStream(Files.newInputStream(path), 1 << 20)) {
            byte[] bytes = new byte[HEAD];
            while (file.readNBytes(bytes, 0, HEAD) == HEAD) {
                ByteBuffer head = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
                Event event = new Event();
                event.time = head.getLong();
                event.key = head.getLong();
                event.value = head.getLong();
                event.text = new String(file.readNBytes(head.getInt()), StandardCharsets.UTF_8);
                events.add(event);
            }
        }
        return events;
    }
}
