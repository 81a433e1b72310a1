package peer;

import java.util.HashMap;
import java.util.Map;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.BoundedOneInput;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/** Aggregates the rows of a window in a task, and sends what it knows when the window is over or many keys came. */
final class Combiner extends AbstractStreamOperator<Row>
        implements OneInputStreamOperator<Row, Row>, BoundedOneInput {
    private static final int KEYS_MAX = 1 << 16;

    private final Main.Kind kind;
    private final long window;
    private transient Map<Long, Row> known;
    private transient long current;
    private transient StreamRecord<Row> out;

    Combiner(Main.Kind kind, long window) {
        this.kind = kind;
        this.window = window;
    }

    @Override
    public void open() throws Exception {
        super.open();
        known = new HashMap<>();
        out = new StreamRecord<>(null);
    }

    @Override
    public void processElement(StreamRecord<Row> element) {
        Row row = element.getValue();
        long of = window == 0 ? 0 : Math.floorDiv(row.time, window);
        if (of != current || known.size() >= KEYS_MAX) {
            send();
            current = of;
        }
        Row group = known.get(row.key);
        if (group == null) {
            group = new Row();
            group.key = row.key;
            known.put(row.key, group);
        }
        group.time = row.time;
        Main.fold(kind, group, row);
    }

    @Override
    public void processWatermark(Watermark mark) throws Exception {
        // Nothing may be sent behind the watermark that its rows are older than.
        if (window != 0 && Math.floorDiv(mark.getTimestamp(), window) > current) {
            send();
        }
        long before = window == 0 ? mark.getTimestamp() : Math.min(mark.getTimestamp(), current * window - 1);
        super.processWatermark(known.isEmpty() ? mark : new Watermark(before));
    }

    @Override
    public void endInput() {
        send();
    }

    private void send() {
        for (Row group : known.values()) {
            output.collect(out.replace(group, group.time));
        }
        known.clear();
    }
}
