import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes numbers to all partitions in turn until its input ends, and prints what was acknowledged where. */
public final class NumberWriter {
    public static void main(String[] words) throws Exception {
        String topic = words[1];
        int partitions = Integer.parseInt(words[2]);
        String name = words[3];
        long pauseMs = Long.parseLong(words[4]);
        Properties settings = new Properties();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, words[0]);
        settings.put(ProducerConfig.ACKS_CONFIG, "all");
        settings.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, "true");
        settings.put(ProducerConfig.LINGER_MS_CONFIG, "2");
        settings.put(ProducerConfig.REQUEST_TIMEOUT_MS_CONFIG, "4000");
        settings.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, "120000");
        settings.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, "120000");
        settings.put(ProducerConfig.RETRY_BACKOFF_MS_CONFIG, "20");
        settings.put(ProducerConfig.RETRY_BACKOFF_MAX_MS_CONFIG, "200");
        settings.put(ProducerConfig.RECONNECT_BACKOFF_MS_CONFIG, "20");
        settings.put(ProducerConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG, "200");
        settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        AtomicBoolean over = new AtomicBoolean();
        Thread ear = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // Whoever started us writes nothing: its end is ours.
                }
            } catch (java.io.IOException ended) {
                // The same.
            }
            over.set(true);
        });
        ear.setDaemon(true);
        ear.start();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (long number = 0; !over.get(); number++) {
                int partition = (int) (number % partitions);
                long written = number;
                byte[] value = (name + ":" + number).getBytes();
                producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, fault) -> {
                    synchronized (System.out) {
                        if (fault == null) {
                            System.out.println("acked " + partition + " " + metadata.offset() + " " + written);
                        } else {
                            System.out.println("failed " + written + " " + fault);
                        }
                        System.out.flush();
                    }
                });
                Thread.sleep(pauseMs);
            }
            producer.flush();
        }
    }
}
