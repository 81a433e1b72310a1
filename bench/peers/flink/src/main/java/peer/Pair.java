package peer;

/** Two rows that met. */
public class Pair {
    public long key;
    public long value;
    public String left;
    public String right;

    public Pair() {}
}
