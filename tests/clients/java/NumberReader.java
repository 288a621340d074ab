import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of groups, a thread for each GROUP=PROTOCOL: read until the input ends, and print what they were given. */
public final class NumberReader {
    private static final long COMMIT_MS = 300;

    public static void main(String[] words) throws Exception {
        AtomicBoolean over = new AtomicBoolean();
        Thread[] members = new Thread[words.length - 2];
        for (int i = 2; i < words.length; i++) {
            String[] group = words[i].split("=");
            members[i - 2] = new Thread(() -> read(words[0], words[1], group[0], group[1], over));
            members[i - 2].start();
        }
        while (System.in.read() >= 0) {
            // Whoever started us writes nothing: its end is ours.
        }
        over.set(true);
        for (Thread member : members) {
            member.join();
        }
    }

    private static void read(String bootstrap, String topic, String group, String protocol, AtomicBoolean over) {
        Properties settings = new Properties();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        settings.put(ConsumerConfig.GROUP_PROTOCOL_CONFIG, protocol);
        if (protocol.equals("classic")) {
            settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, "6000");
            settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, "500");
        }
        settings.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        // Whoever reads from where nothing is must hear of it: the group has committed a beginning.
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "none");
        settings.put(ConsumerConfig.REQUEST_TIMEOUT_MS_CONFIG, "4000");
        settings.put(ConsumerConfig.DEFAULT_API_TIMEOUT_MS_CONFIG, "60000");
        settings.put(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, "100");
        settings.put(ConsumerConfig.RETRY_BACKOFF_MS_CONFIG, "20");
        settings.put(ConsumerConfig.RETRY_BACKOFF_MAX_MS_CONFIG, "200");
        settings.put(ConsumerConfig.RECONNECT_BACKOFF_MS_CONFIG, "20");
        settings.put(ConsumerConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG, "200");
        settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class.getName());
        settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class.getName());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            long committedMs = System.currentTimeMillis();
            while (!over.get()) {
                StringBuilder text = new StringBuilder();
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                    text.append("read ").append(group).append(' ').append(each.partition()).append(' ');
                    text.append(each.offset()).append('\n');
                }
                tell(text.toString());
                if (System.currentTimeMillis() - committedMs > COMMIT_MS) {
                    committedMs = System.currentTimeMillis();
                    // Where it comes to nothing, the records are read again.
                    consumer.commitAsync((offsets, fault) -> {});
                }
            }
        } catch (InvalidOffsetException fault) {
            tell("gone " + group + " " + fault + "\n");
        } catch (RuntimeException fault) {
            tell("ended " + group + " " + fault + "\n");
        }
    }

    private static void tell(String text) {
        synchronized (System.out) {
            System.out.print(text);
            System.out.flush();
        }
    }
}
