import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads so many records of partition 0 from the beginning, and says which replica it read them from at the end. */
public class RackReader {
    public static void main(String[] words) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("client.rack", words[2]);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "none");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        TopicPartition partition = new TopicPartition(words[1], 0);
        int wanted = Integer.parseInt(words[3]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            long due = 0;
            long until = System.currentTimeMillis() + 60_000;
            while (due < wanted && System.currentTimeMillis() < until) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (record.offset() != due) {
                        System.out.println("out of order " + record.offset() + " for " + due);
                    }
                    due = record.offset() + 1;
                }
            }
            System.out.println("read " + due);
            for (Map.Entry<MetricName, ? extends Metric> each : consumer.metrics().entrySet()) {
                if (each.getKey().name().equals("preferred-read-replica")) {
                    System.out.println("replica " + ((Number) each.getValue().metricValue()).intValue());
                }
            }
        }
    }
}
