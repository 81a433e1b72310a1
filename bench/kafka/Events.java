import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.CRC32C;

/**
 * Sends events to a topic at a steady rate: {@code java Events.java HOST:PORT TOPIC PARTITIONS RATE SECONDS}.
 *
 * <p>It writes the protocol of Kafka itself (record batches of magic 2, Produce of version 3), to the one broker that
 * there is: a client costs more for each message than the job that is measured, on the processor of the broker.
 *
 * <p>The event time and the time of the message are the clock's when the event is made, and it is sent at once. An
 * event that is behind its schedule is made as soon as it can be. It prints how many events it has sent, and how far
 * one was behind its schedule at most after the first ten seconds, in milliseconds. It ends with code 1 where the broker
 * has refused some.
 */
public final class Events {
    private static final int USERS = 1000;
    private static final String[] TYPES = {"view", "click", "purchase", "cart"};
    private static final DateTimeFormatter SECONDS = DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.");
    /** Of a request: some milliseconds of events, and less than a broker takes as one batch. */
    private static final int MOST_OF_BATCH = 4000;
    /** Until the compilers of Java are done. */
    private static final long WARM_SECONDS = 10;
    private static final long TICK_NANOS = 2_000_000;

    private static final int BATCH_LENGTH_AT = 8;
    private static final int CRC_AT = 17;
    private static final int ATTRIBUTES_AT = 21;

    private final byte[] topic;
    private final int partitions;
    private final ByteBuffer request = ByteBuffer.allocate(8 << 20);
    private final ByteBuffer event = ByteBuffer.allocate(256);
    private final CRC32C crc = new CRC32C();
    private byte[] second;
    private long secondOf = -1;

    private Events(String topic, int partitions) {
        this.topic = topic.getBytes(StandardCharsets.UTF_8);
        this.partitions = partitions;
    }

    public static void main(String[] arguments) throws Exception {
        String[] server = arguments[0].split(":");
        long rate = Long.parseLong(arguments[3]);
        Events events = new Events(arguments[1], Integer.parseInt(arguments[2]));
        try (Socket socket = new Socket(server[0], Integer.parseInt(server[1]))) {
            socket.setTcpNoDelay(true);
            events.send(socket, rate, rate * Long.parseLong(arguments[4]));
        }
    }

    private void send(Socket socket, long rate, long rows) throws Exception {
        OutputStream out = socket.getOutputStream();
        CompletableFuture<Void> answered = new CompletableFuture<>();
        Thread answers = new Thread(() -> {
            try {
                read(new DataInputStream(new BufferedInputStream(socket.getInputStream())), rows);
                answered.complete(null);
            } catch (IOException | RuntimeException error) {
                answered.completeExceptionally(error);
            }
        });
        answers.setDaemon(true);
        answers.start();
        long begin = System.nanoTime();
        long most = 0;
        for (long row = 0; row < rows && !answered.isCompletedExceptionally(); ) {
            long due = Math.min(rows, (System.nanoTime() - begin) / 1000 * rate / 1_000_000);
            int count = (int) Math.min(due - row, (long) MOST_OF_BATCH * partitions);
            if (count > 0) {
                produce(row, count, System.currentTimeMillis());
                out.write(request.array(), 0, request.position());
                row += count;
                if (row > WARM_SECONDS * rate) {
                    most = Math.max(most, (System.nanoTime() - begin) / 1_000_000 - row * 1000 / rate);
                }
            }
            if (row >= due) {
                LockSupport.parkNanos(TICK_NANOS);
            }
        }
        answered.get();
        System.out.println(rows + " " + most);
    }

    /** Reads answers until all messages have their place: an answer tells each partition's first one. */
    private void read(DataInputStream in, long rows) throws IOException {
        for (long taken = 0; taken < rows; ) {
            in.readInt();
            int number = in.readInt();
            for (int topics = in.readInt(); topics > 0; topics--) {
                in.skipNBytes(in.readUnsignedShort());
                for (int left = in.readInt(); left > 0; left--) {
                    int partition = in.readInt();
                    int error = in.readShort();
                    if (error != 0) {
                        throw new IOException("the broker refuses messages of partition " + partition + ": error " + error);
                    }
                    in.readLong();
                    in.readLong();
                }
            }
            in.readInt();
            // The number of a request is that of its events.
            taken += number;
        }
    }

    /** Makes the request that has the events from `first` on: each partition has every n-th. */
    private void produce(long first, int count, long now) {
        request.clear();
        request.putInt(0).putShort((short) 0).putShort((short) 3).putInt(count).putShort((short) -1);
        request.putShort((short) -1).putShort((short) -1).putInt(30_000).putInt(1);
        request.putShort((short) topic.length).put(topic);
        int used = Math.min(partitions, count);
        request.putInt(used);
        for (int part = 0; part < used; part++) {
            request.putInt((int) ((first + part) % partitions));
            int length = request.position();
            batch(first + part, (count - part + partitions - 1) / partitions, now, request.putInt(0).position());
            request.putInt(length, request.position() - length - 4);
        }
        request.putInt(0, request.position() - 4);
    }

    private void batch(long first, int count, long now, int at) {
        request.putLong(0).putInt(0).putInt(-1).put((byte) 2).putInt(0);
        request.putShort((short) 0).putInt(count - 1).putLong(now).putLong(now);
        request.putLong(-1).putShort((short) -1).putInt(-1).putInt(count);
        for (int index = 0; index < count; index++) {
            make(first + (long) index * partitions, now);
            int length = event.position();
            // Attributes, the time behind the batch's, no key, no headers: a byte each.
            varint(4 + size(index) + size(length) + length);
            request.put((byte) 0).put((byte) 0);
            varint(index);
            request.put((byte) 1);
            varint(length);
            request.put(event.array(), 0, length).put((byte) 0);
        }
        request.putInt(at + BATCH_LENGTH_AT, request.position() - at - BATCH_LENGTH_AT - 4);
        crc.reset();
        crc.update(request.array(), at + ATTRIBUTES_AT, request.position() - at - ATTRIBUTES_AT);
        request.putInt(at + CRC_AT, (int) crc.getValue());
    }

    private static int size(int value) {
        int size = 1;
        for (int rest = value << 1; rest >= 128; rest >>>= 7) {
            size++;
        }
        return size;
    }

    /** Zigzag of a number that is not negative. */
    private void varint(int value) {
        int rest = value << 1;
        for (; rest >= 128; rest >>>= 7) {
            request.put((byte) (rest | 128));
        }
        request.put((byte) rest);
    }

    /** Makes an event; the numbers at random are those of splitmix64. */
    private void make(long row, long now) {
        long random = (row + 1) * 0x9E3779B97F4A7C15L;
        random = (random ^ random >>> 30) * 0xBF58476D1CE4E5B9L;
        random = (random ^ random >>> 27) * 0x94D049BB133111EBL;
        random = (random ^ random >>> 31) & Long.MAX_VALUE;
        event.clear();
        text("{\"id\":").number(row).text(",\"ts\":\"").time(now).text("\",\"user\":").number(random % USERS);
        text(",\"type\":\"").text(TYPES[(int) (random >>> 20 & 3)]).text("\",\"amount\":");
        number((random >>> 24) % 500).text(".").number(random >>> 40 & 1023);
        text(",\"url\":\"https://shop.example/item/12345\"}");
    }

    /** Texts are ASCII: their bytes are the low ones of their characters. */
    @SuppressWarnings("deprecation")
    private Events text(String text) {
        text.getBytes(0, text.length(), event.array(), event.position());
        event.position(event.position() + text.length());
        return this;
    }

    private Events number(long number) {
        int digits = 1;
        for (long rest = number; rest >= 10; rest /= 10) {
            digits++;
        }
        int end = event.position() + digits;
        long rest = number;
        for (int at = end - 1; at >= end - digits; at--) {
            event.put(at, (byte) ('0' + rest % 10));
            rest /= 10;
        }
        event.position(end);
        return this;
    }

    private Events time(long now) {
        if (now / 1000 != secondOf) {
            secondOf = now / 1000;
            second = LocalDateTime.ofEpochSecond(secondOf, 0, ZoneOffset.UTC).format(SECONDS)
                    .getBytes(StandardCharsets.US_ASCII);
        }
        event.put(second);
        int millis = (int) (now % 1000);
        event.put((byte) ('0' + millis / 100)).put((byte) ('0' + millis / 10 % 10)).put((byte) ('0' + millis % 10));
        return this;
    }
}
