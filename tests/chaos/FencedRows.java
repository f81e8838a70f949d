import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;

/**
 * A job that writes numbered rows: its driver asks the sink for the next row, and its executor writes the rows.
 *
 * <p>FencedRows SINK RUN ATTEMPT ROWS. A standalone cluster takes no driver in Python, so the job is in Java. Each
 * request has the term and a counter that grows; the sink refuses both if a later job has begun.
 */
public final class FencedRows {
    private static final int ROWS_PER_TASK = 4;

    public static void main(String[] words) throws Exception {
        int rows = Integer.parseInt(words[3]);
        try (JavaSparkContext spark = new JavaSparkContext(new SparkConf())) {
            String term = spark.getConf().get("spark.neli.term");
            long counter = Long.parseLong(spark.getConf().get("spark.neli.counter"));
            String job = String.format("%s/%%s?run=%s&attempt=%s&term=%s&job=%d&driver=%d&counter=%%d&row=%%d",
                words[0], words[1], words[2], term, counter, ProcessHandle.current().pid());
            int next = Integer.parseInt(asked(String.format(job, "begin", counter, 0)));
            while (next < rows) {
                List<Integer> part = new ArrayList<>();
                for (; next < rows && part.size() < ROWS_PER_TASK; next++) {
                    part.add(next);
                }
                spark.parallelize(part, 1)
                    .map(row -> asked(String.format(job, "row", counter + 1 + row, row)))
                    .collect();
            }
            asked(String.format(job, "done", counter + 1 + rows, rows));
        }
    }

    private static String asked(String url) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url)).build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IllegalStateException(answer.body());
        }
        return answer.body();
    }
}
