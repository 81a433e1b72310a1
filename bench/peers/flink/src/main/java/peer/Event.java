package peer;

/** A row that is joined: its other columns are one text. */
public class Event {
    public long key;
    public long value;
    public String text;
    /** Milliseconds. */
    public long time;

    public Event() {}
}
