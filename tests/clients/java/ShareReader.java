import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group: it accepts records until it has as many as it was told, and prints each delivery. A value
 * that begins with "release" is released at its first delivery; one that begins with "renew" is renewed once.
 */
public final class ShareReader {
    public static void main(String[] words) {
        String topic = words[2];
        int wanted = Integer.parseInt(words[3]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", words[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("share.acquire.mode", words[4]);
        settings.put("max.poll.records", "10");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        Set<Long> accepted = new HashSet<>();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            Set<Long> renewed = new HashSet<>();
            while (accepted.size() < wanted) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(500))) {
                    short count = each.deliveryCount().get();
                    if (each.value().startsWith("release") && count == 1) {
                        consumer.acknowledge(each, AcknowledgeType.RELEASE);
                    } else if (each.value().startsWith("renew") && renewed.add(each.offset())) {
                        consumer.acknowledge(each, AcknowledgeType.RENEW);
                    } else {
                        consumer.acknowledge(each, AcknowledgeType.ACCEPT);
                        accepted.add(each.offset());
                    }
                    System.out.println(each.value() + " " + count);
                }
                Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync();
                for (Optional<KafkaException> each : results.values()) {
                    each.ifPresent(fault -> System.out.println("fault " + fault));
                }
            }
        }
    }
}
