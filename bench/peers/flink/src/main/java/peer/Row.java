package peer;

/** A row as it travels: a key and a value; with a combiner, what is known of a key so far. */
public class Row {
    public long key;
    /** A value, the greatest so far, or the bits of a sum. */
    public long value;
    /** Rows behind it. */
    public long count;
    /** Milliseconds. */
    public long time;

    public Row() {}
}
