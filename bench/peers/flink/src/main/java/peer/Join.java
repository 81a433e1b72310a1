package peer;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;

/** Two tables that are joined by key in windows of event time: what Flink's DataStream API has for it, {@code join}. */
final class Join {
    /** The tables, and the windows in which rows of one key meet. */
    record Workload(String left, String right, WindowAssigner<Object, TimeWindow> windows) {}

    static final Map<String, Workload> WORKLOADS = Map.of(
            "nb8", new Workload("auctions", "persons", TumblingEventTimeWindows.of(Duration.ofHours(12))),
            "nb11", new Workload("bids", "persons", EventTimeSessionWindows.withGap(Duration.ofSeconds(10))));

    /** Tasks of a local environment are threads of this process: 0 is the left table, 1 the right. */
    static List<List<Event>> tables;

    private Join() {}

    static void load(Workload workload, String rows) throws Exception {
        String stem = rows.substring(0, rows.length() - ".rows".length());
        tables = List.of(
                Events.read(Path.of(stem + "." + workload.left() + ".rows")),
                Events.read(Path.of(stem + "." + workload.right() + ".rows")));
    }

    static double run(Workload workload, int threads) throws Exception {
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(threads, new Configuration());
        env.getConfig().enableObjectReuse();
        read(env, 0, threads)
                .join(read(env, 1, threads))
                .where(event -> event.key)
                .equalTo(event -> event.key)
                .window(workload.windows())
                .apply(Join::pair, TypeInformation.of(Pair.class))
                .sinkTo(new Tally());
        return env.execute().getNetRuntime() / 1e3;
    }

    private static DataStream<Event> read(StreamExecutionEnvironment env, int table, int threads) {
        long length = tables.get(table).size();
        WatermarkStrategy<Event> times = WatermarkStrategy.<Event>forMonotonousTimestamps()
                .withTimestampAssigner((event, before) -> event.time);
        DataGeneratorSource<Event> source = new DataGeneratorSource<>(
                new Read(table, length, threads), length, TypeInformation.of(Event.class));
        return env.fromSource(source, times, "table " + table);
    }

    private static Pair pair(Event left, Event right) {
        Pair pair = new Pair();
        pair.key = left.key;
        pair.value = left.value;
        pair.left = left.text;
        pair.right = right.text;
        return pair;
    }

    /** Rows of a task are every n-th. They are kept by the join, and nobody changes them. */
    static final class Read implements GeneratorFunction<Long, Event> {
        private final int table;
        private final long share;
        private final int tasks;

        Read(int table, long length, int tasks) {
            this.table = table;
            share = length / tasks;
            this.tasks = tasks;
        }

        @Override
        public Event map(Long index) {
            long at = Math.min(index / share, tasks - 1);
            return tables.get(table).get((int) ((index - at * share) * tasks + at));
        }
    }

    /** Keeps sums, as the sink of Millstream's bench does. */
    static final class Tally implements Sink<Pair> {
        @Override
        public SinkWriter<Pair> createWriter(WriterInitContext context) {
            Main.Sums sums = new Main.Sums();
            return new SinkWriter<>() {
                @Override
                public void write(Pair pair, Context context) {
                    sums.rows++;
                    sums.whole += (pair.key + 1) * pair.value;
                }

                @Override
                public void flush(boolean atEnd) {}

                @Override
                public void close() {
                    Main.TOTAL.get().add(sums);
                }
            };
        }
    }
}
