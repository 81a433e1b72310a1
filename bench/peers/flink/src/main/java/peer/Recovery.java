package peer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;

/**
 * YSB with checkpoints and without: rows that are made by arithmetic, a filter, the campaign of an advertisement, an
 * exchange by campaign, windows of ten seconds of event time, a count. It prints a JSON line when it is ready, and one
 * for each line that it reads: the number of rows, and the milliseconds between two checkpoints, 0 for none.
 */
public final class Recovery {
    private static final int ADS = 1000;
    private static final int ADS_OF_CAMPAIGN = 10;
    private static final int EVENT_TYPES = 3;
    private static final long ROWS_OF_MILLISECOND = 1000;

    static final AtomicLong CHECKPOINTS = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i], arguments[i + 1]);
        }
        int threads = Integer.parseInt(options.get("--threads"));
        Path directory = Path.of(options.get("--directory"));
        System.out.printf("{\"version\":\"%s\"}%n", EnvironmentInformation.getVersion());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            run(threads, options.get("--backend"), directory, Long.parseLong(words[0]), Long.parseLong(words[1]));
        }
        System.exit(0);
    }

    static void run(int threads, String backend, Path directory, long rows, long interval) throws Exception {
        Path state = Files.createTempDirectory(directory, "flink");
        Map<String, String> settings = new HashMap<>();
        settings.put("state.backend.type", backend);
        if (interval > 0) {
            settings.put("execution.checkpointing.interval", interval + " ms");
            settings.put("execution.checkpointing.dir", state.toUri().toString());
        }
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(threads, Configuration.fromMap(settings));
        env.getConfig().enableObjectReuse();
        WatermarkStrategy<Row> times = WatermarkStrategy.<Row>forMonotonousTimestamps()
                .withTimestampAssigner((row, before) -> row.time);
        DataGeneratorSource<Row> source = new DataGeneratorSource<>(new Make(), rows, TypeInformation.of(Row.class));
        Main.TOTAL.set(new Main.Sums());
        CHECKPOINTS.set(0);
        env.fromSource(source, times, "rows")
                .filter(new Views())
                .keyBy(row -> row.key)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(10)))
                .aggregate(new Main.Fold(Main.Kind.COUNT), new Main.WithKey<>())
                .sinkTo(new Main.Tally(Main.Kind.COUNT));
        long before = processorTime();
        double seconds = env.execute().getNetRuntime() / 1e3;
        double processor = (processorTime() - before) / 1e9;
        Main.Sums sums = Main.TOTAL.get();
        System.out.printf(Locale.ROOT,
                "{\"seconds\":%f,\"processor\":%f,\"checkpoints\":%d,\"rows\":%d,\"whole\":%s}%n",
                seconds, processor, CHECKPOINTS.get(), sums.rows, Long.toUnsignedString(sums.whole));
        remove(state);
    }

    /** Nanoseconds of all threads of this process, its compilers and collectors among them. */
    static long processorTime() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    static void remove(Path directory) throws IOException {
        try (Stream<Path> all = Files.walk(directory)) {
            for (Path path : all.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(path);
            }
        }
    }

    /** Rows as the generator of YSB gives them: an advertisement and a type at random, a thousand rows a millisecond. */
    static final class Make implements GeneratorFunction<Long, Row> {
        private transient Row row;

        @Override
        public Row map(Long index) {
            if (row == null) {
                row = new Row();
            }
            long random = index * 0x9E3779B97F4A7C15L;
            random = (random ^ random >>> 32) * 0xD6E8FEB86659FD93L;
            random ^= random >>> 32;
            row.time = index / ROWS_OF_MILLISECOND;
            row.key = (random & 0x7FFFFFFF) % ADS / ADS_OF_CAMPAIGN;
            row.value = (random >>> 32) % EVENT_TYPES;
            row.count = 1;
            return row;
        }
    }

    /** Views are kept. The greatest number of a completed checkpoint is how many there were. */
    static final class Views implements FilterFunction<Row>, CheckpointListener {
        @Override
        public boolean filter(Row row) {
            return row.value == 0;
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            CHECKPOINTS.accumulateAndGet(checkpoint, Math::max);
        }
    }
}
