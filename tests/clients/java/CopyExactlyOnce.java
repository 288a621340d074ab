import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Fills a topic in transactions of which every second one is aborted, copies it inside transactions that also commit
 * the offsets, reads the copy, and lets a second producer fence the first. Prints what it read, one value a line.
 */
public final class CopyExactlyOnce {
    private static final int TRANSACTIONS = 10;
    private static final int RECORDS = 20;
    private static String bootstrap;
    private static String protocol;

    public static void main(String[] words) {
        bootstrap = words[0];
        String input = words[1];
        String output = words[2];
        protocol = words[3];
        fill(input);
        int copied = copy(input, output, TRANSACTIONS / 2 * RECORDS);
        for (String value : readAll(output, copied)) {
            System.out.println(value);
        }
        System.out.println(fence(output) ? "fenced" : "not fenced");
    }

    private static KafkaProducer<String, String> producer(String name) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", name);
        settings.put("retry.backoff.ms", 20);
        KafkaProducer<String, String> made =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    private static KafkaConsumer<String, String> consumer(String group, String topic) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("group.protocol", protocol);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        settings.put("fetch.max.wait.ms", 50);
        KafkaConsumer<String, String> made =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        made.subscribe(List.of(topic));
        return made;
    }

    private static void fill(String topic) {
        try (KafkaProducer<String, String> producer = producer("java-filler")) {
            int number = 0;
            for (int transaction = 0; transaction < TRANSACTIONS; transaction++) {
                producer.beginTransaction();
                for (int record = 0; record < RECORDS; record++) {
                    boolean kept = transaction % 2 == 0;
                    String value = kept ? Integer.toString(number++) : "aborted";
                    producer.send(new ProducerRecord<>(topic, record % 2, "key", value));
                }
                if (transaction % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
    }

    private static int copy(String input, String output, int expected) {
        int copied = 0;
        try (KafkaProducer<String, String> producer = producer("java-copier");
                KafkaConsumer<String, String> consumer = consumer(input, input)) {
            while (copied < expected) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> each : records) {
                    producer.send(new ProducerRecord<>(output, each.partition(), each.key(), each.value()));
                    offsets.put(
                            new TopicPartition(each.topic(), each.partition()),
                            new OffsetAndMetadata(each.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
                copied += records.count();
            }
        }
        return copied;
    }

    private static List<String> readAll(String topic, int expected) {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(topic, topic)) {
            while (found.size() < expected) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                    found.add(each.value());
                }
            }
        }
        return found;
    }

    private static boolean fence(String topic) {
        KafkaProducer<String, String> zombie = producer("java-zombie");
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(topic, 0, "key", "of a zombie"));
        zombie.flush();
        try (KafkaProducer<String, String> successor = producer("java-zombie")) {
            zombie.commitTransaction();
            return false;
        } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            return true;
        } finally {
            zombie.close(Duration.ZERO);
        }
    }
}
