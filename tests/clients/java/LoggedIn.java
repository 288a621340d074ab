import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.security.token.delegation.DelegationToken;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * By the settings of a file: writes a record and reads it again, so often and with such a pause; or makes a delegation
 * token ("token" as the second word) and prints its id and what proves it.
 */
public final class LoggedIn {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(words[0])) {
            settings.load(file);
        }
        if (words[1].equals("token")) {
            makeToken(settings);
            return;
        }
        String topic = words[1];
        int rounds = Integer.parseInt(words[2]);
        long pauseMs = Long.parseLong(words[3]);
        settings.put("fetch.max.wait.ms", "50");
        try (KafkaProducer<String, String> producer =
                        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
                KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            for (int round = 0; round < rounds; round++) {
                long offset = producer.send(new ProducerRecord<>(topic, 0, null, "round " + round)).get().offset();
                consumer.seek(partition, offset);
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(20))) {
                    System.out.println(each.value());
                }
                Thread.sleep(pauseMs);
            }
        }
    }

    private static void makeToken(Properties settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            DelegationToken token =
                    admin.createDelegationToken(new CreateDelegationTokenOptions()).delegationToken().get();
            System.out.println(token.tokenInfo().tokenId());
            System.out.println(token.hmacAsBase64String());
            int seen = admin.describeDelegationToken().delegationTokens().get().size();
            System.out.println("seen " + seen);
        }
    }
}
