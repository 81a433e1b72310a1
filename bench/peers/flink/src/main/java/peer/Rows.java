package peer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Packed rows in memory: time, key and value of 8 bytes each, and 8 bytes that are 1 where the row is kept by the filter,
 * little-endian.
 */
final class Rows {
    static final int BYTES = 32;
    private static final long ROWS_PER_PART = 1 << 24;

    /** Tasks of a local environment are threads of this process. */
    static Rows shared;

    private final ByteBuffer[] parts;
    final long length;

    Rows(Path path) throws IOException {
        try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ)) {
            length = file.size() / BYTES;
            parts = new ByteBuffer[(int) ((length + ROWS_PER_PART - 1) / ROWS_PER_PART)];
            for (int part = 0; part < parts.length; part++) {
                long first = part * ROWS_PER_PART;
                int bytes = (int) (Math.min(ROWS_PER_PART, length - first) * BYTES);
                ByteBuffer buffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.LITTLE_ENDIAN);
                while (buffer.hasRemaining()) {
                    if (file.read(buffer, first * BYTES + buffer.position()) < 0) {
                        throw new IOException(path + " became shorter");
                    }
                }
                parts[part] = buffer;
            }
        }
    }

    private long word(long row, int word) {
        ByteBuffer part = parts[(int) (row / ROWS_PER_PART)];
        return part.getLong((int) (row % ROWS_PER_PART) * BYTES + word * 8);
    }

    long time(long row) {
        return word(row, 0);
    }

    long key(long row) {
        return word(row, 1);
    }

    long value(long row) {
        return word(row, 2);
    }

    boolean kept(long row) {
        return word(row, 3) != 0;
    }
}
