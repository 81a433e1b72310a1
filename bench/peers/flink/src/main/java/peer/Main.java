package peer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.GlobalWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.Window;
import org.apache.flink.util.Collector;

/**
 * A workload on Flink's DataStream API, in a local environment: rows in memory, a filter, keys of groups
 * from a table that each task has (as the program of the benchmark does), an exchange by key, windows of event time, an incremental aggregate. With {@code --combine} each task aggregates before the exchange, as somebody would
 * who needs it fast. Joins are in {@link Join}. Speaks as ../peer.py says.
 */
public final class Main {
    enum Kind { COUNT, MAX, MEAN }

    /** What a workload computes of rows that are packed with its own key, and the table that has the groups' keys, if any. */
    record Workload(Kind kind, long window, String table) {
        Workload(Kind kind, long window) {
            this(kind, window, null);
        }
    }

    static final Map<String, Workload> WORKLOADS = Map.of(
            "ysb", new Workload(Kind.COUNT, 10_000, "ads"),
            "ysb-keys", new Workload(Kind.COUNT, 600_000),
            "ro", new Workload(Kind.COUNT, 0),
            "cm", new Workload(Kind.MEAN, 2_000),
            "nb7", new Workload(Kind.MAX, 60_000));

    /** Sums over the rows that the sinks of this process took. */
    static final class Sums {
        long rows;
        long whole;
        double real;

        synchronized void add(Sums other) {
            rows += other.rows;
            whole += other.whole;
            real += other.real;
        }
    }

    static final AtomicReference<Sums> TOTAL = new AtomicReference<>(new Sums());

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        boolean combine = false;
        for (int i = 0; i < arguments.length; i++) {
            if (arguments[i].equals("--combine")) {
                combine = true;
            } else {
                options.put(arguments[i], arguments[++i]);
            }
        }
        Workload workload = WORKLOADS.get(options.get("--workload"));
        Join.Workload join = Join.WORKLOADS.get(options.get("--workload"));
        int threads = Integer.parseInt(options.get("--threads"));
        if (join == null) {
            String rows = options.get("--rows");
            Rows.shared = new Rows(Path.of(rows));
            if (workload.table() != null) {
                Path table = Path.of(rows.replaceFirst("rows$", workload.table() + ".rows"));
                Look.keys = Look.read(table);
            }
        } else {
            Join.load(join, options.get("--rows"));
        }
        System.out.printf("{\"version\":\"%s\"}%n", EnvironmentInformation.getVersion());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        while (lines.readLine() != null) {
            TOTAL.set(new Sums());
            double seconds = join == null ? run(workload, threads, combine) : Join.run(join, threads);
            Sums sums = TOTAL.get();
            System.out.printf(Locale.ROOT, "{\"seconds\":%f,\"rows\":%d,\"whole\":%s,\"real\":%.17e}%n",
                    seconds, sums.rows, Long.toUnsignedString(sums.whole), sums.real);
        }
        System.exit(0);
    }

    static double run(Workload workload, int threads, boolean combine) throws Exception {
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(threads, new Configuration());
        env.getConfig().enableObjectReuse();
        Kind kind = workload.kind();
        WatermarkStrategy<Row> times = WatermarkStrategy.<Row>forMonotonousTimestamps()
                .withTimestampAssigner((row, before) -> row.time);
        DataGeneratorSource<Row> source = new DataGeneratorSource<>(
                new Read(Rows.shared.length, threads), Rows.shared.length, TypeInformation.of(Row.class));
        DataStream<Row> rows = env.fromSource(source, times, "rows").filter(row -> row.count != 0);
        if (workload.table() != null) {
            rows = rows.flatMap(new Look());
        }
        if (combine) {
            rows = rows.transform("combine", rows.getType(), new Combiner(kind, workload.window()));
        }
        WindowAssigner<Object, ? extends Window> windows = workload.window() == 0
                ? GlobalWindows.createWithEndOfStreamTrigger()
                : TumblingEventTimeWindows.of(java.time.Duration.ofMillis(workload.window()));
        rows.keyBy(row -> row.key)
                .window(windows)
                .aggregate(new Fold(kind), new WithKey<>())
                .sinkTo(new Tally(kind));
        return env.execute().getNetRuntime() / 1e3;
    }

    /** A join with a table: the key of a row becomes that of its group; a row that the table does not have is left out. */
    static final class Look extends RichFlatMapFunction<Row, Row> {
        /** What the file has; tasks of a local environment are threads of this process. */
        static Map<Long, Long> keys;

        private transient Map<Long, Long> own;

        static Map<Long, Long> read(Path table) throws IOException {
            ByteBuffer words = ByteBuffer.wrap(Files.readAllBytes(table)).order(ByteOrder.LITTLE_ENDIAN);
            Map<Long, Long> keys = new HashMap<>();
            while (words.hasRemaining()) {
                keys.put(words.getLong(), words.getLong());
            }
            return keys;
        }

        @Override
        public void open(OpenContext context) {
            own = new HashMap<>(keys);
        }

        @Override
        public void flatMap(Row row, Collector<Row> out) {
            Long key = own.get(row.key);
            if (key != null) {
                row.key = key;
                out.collect(row);
            }
        }
    }

    /** Rows of a task are every n-th, as of Millstream's workers, so that all tasks see the same event time. */
    static final class Read implements GeneratorFunction<Long, Row> {
        private final long share;
        private final int tasks;
        private transient Row row;

        Read(long length, int tasks) {
            share = length / tasks;
            this.tasks = tasks;
        }

        @Override
        public Row map(Long index) {
            long at = Math.min(index / share, tasks - 1);
            long from = (index - at * share) * tasks + at;
            Rows rows = Rows.shared;
            if (row == null) {
                row = new Row();
            }
            row.time = rows.time(from);
            row.key = rows.key(from);
            row.value = rows.value(from);
            row.count = rows.kept(from) ? 1 : 0;
            return row;
        }
    }

    /** Adds a row, or what a combiner knows, to what is known. */
    static void fold(Kind kind, Row known, Row row) {
        switch (kind) {
            case COUNT -> {}
            case MAX -> known.value = known.count == 0 ? row.value : Math.max(known.value, row.value);
            case MEAN -> known.value = Double.doubleToRawLongBits(
                    Double.longBitsToDouble(known.value) + Double.longBitsToDouble(row.value));
        }
        known.count += row.count;
    }

    static final class Fold implements AggregateFunction<Row, Row, Row> {
        private final Kind kind;

        Fold(Kind kind) {
            this.kind = kind;
        }

        @Override
        public Row createAccumulator() {
            return new Row();
        }

        @Override
        public Row add(Row row, Row known) {
            fold(kind, known, row);
            return known;
        }

        @Override
        public Row getResult(Row known) {
            return known;
        }

        @Override
        public Row merge(Row one, Row other) {
            fold(kind, one, other);
            return one;
        }
    }

    static final class WithKey<W extends Window> extends ProcessWindowFunction<Row, Row, Long, W> {
        @Override
        public void process(Long key, Context context, Iterable<Row> known, Collector<Row> out) {
            Row row = known.iterator().next();
            row.key = key;
            out.collect(row);
        }
    }

    /** Keeps sums, as the sink of Millstream's bench does. */
    static final class Tally implements Sink<Row> {
        private final Kind kind;

        Tally(Kind kind) {
            this.kind = kind;
        }

        @Override
        public SinkWriter<Row> createWriter(WriterInitContext context) {
            Sums sums = new Sums();
            return new SinkWriter<>() {
                @Override
                public void write(Row row, Context context) {
                    long weight = row.key + 1;
                    sums.rows++;
                    switch (kind) {
                        case COUNT -> sums.whole += weight * row.count;
                        case MAX -> sums.whole += weight * row.value;
                        case MEAN -> sums.real += weight * (Double.longBitsToDouble(row.value) / row.count);
                    }
                }

                @Override
                public void flush(boolean atEnd) {}

                @Override
                public void close() {
                    TOTAL.get().add(sums);
                }
            };
        }
    }
}
