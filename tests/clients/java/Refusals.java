import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends one batch with and without keys to a compacted topic and prints what became of each record; then sets and reads
 * a setting of a group, a subscription to metrics and a logger, and prints the values with their sources.
 */
public final class Refusals {
    public static void main(String[] words) throws Exception {
        String bootstrap = words[0];
        send(bootstrap, words[1]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            alter(admin, ConfigResource.Type.GROUP, words[1], "consumer.session.timeout.ms", "50000");
            alter(admin, ConfigResource.Type.CLIENT_METRICS, words[1], "interval.ms", "60000");
            alter(admin, ConfigResource.Type.BROKER_LOGGER, "1", "root", "WARN");
        }
    }

    private static void send(String bootstrap, String topic) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "linger.ms", 500);
        List<Future<?>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (String key : new String[] {"a", null, "c"}) {
                sent.add(producer.send(new ProducerRecord<>(topic, key, "value")));
            }
        }
        for (Future<?> each : sent) {
            try {
                each.get();
                System.out.println("stored");
            } catch (ExecutionException fault) {
                System.out.println(fault.getCause().getClass().getSimpleName() + ": " + fault.getCause().getMessage());
            }
        }
    }

    private static void alter(Admin admin, ConfigResource.Type type, String name, String setting, String value)
            throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(setting, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        ConfigEntry found = admin.describeConfigs(List.of(resource)).all().get().get(resource).get(setting);
        System.out.println(setting + "=" + found.value() + " from " + found.source());
    }
}
