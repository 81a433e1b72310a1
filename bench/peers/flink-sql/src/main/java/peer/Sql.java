package peer;

import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Runs the statements of a file in a local environment of Flink, each until it ends. It prints a line for each job:
 * seconds from its submission to its end, what Flink calls its net runtime, and the processor time between submission
 * and end of all threads of this process, its compilers and collectors among them.
 */
public final class Sql {
    private Sql() {}

    public static void main(String[] arguments) throws Exception {
        TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        for (String statement : statements(Files.readString(Path.of(arguments[0])))) {
            if (statement.startsWith("SET ")) {
                String[] sides = statement.substring("SET ".length()).split("=", 2);
                tables.getConfig().set(text(sides[0]), text(sides[1]));
                continue;
            }
            long begin = System.nanoTime();
            long before = processorTime();
            TableResult result = tables.executeSql(statement);
            if (result.getJobClient().isPresent()) {
                JobClient job = result.getJobClient().get();
                JobExecutionResult ended = job.getJobExecutionResult().get();
                System.out.printf(Locale.ROOT, "%.3f %.3f %.3f %s%n", (System.nanoTime() - begin) / 1e9,
                        ended.getNetRuntime(TimeUnit.MILLISECONDS) / 1e3, (processorTime() - before) / 1e9,
                        EnvironmentInformation.getVersion());
            }
        }
        System.exit(0);
    }

    private static long processorTime() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    /** Statements end with a semicolon at the end of a line. */
    private static List<String> statements(String script) {
        List<String> statements = new ArrayList<>();
        for (String statement : script.split(";\\s*(\n|$)")) {
            if (!statement.isBlank()) {
                statements.add(statement.strip());
            }
        }
        return statements;
    }

    /** What is between quotes, or the word as it is. */
    private static String text(String quoted) {
        return quoted.strip().replaceAll("^'|'$", "");
    }
}
