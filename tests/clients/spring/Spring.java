import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.ConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.requestreply.ReplyingKafkaTemplate;
import org.springframework.kafka.support.TopicPartitionOffset;
import org.springframework.messaging.handler.annotation.SendTo;

/**
 * Spring for Apache Kafka on both sides: a listener with a result and {@code @SendTo} is the agent `kafka-spring`, and
 * {@code ReplyingKafkaTemplate} sends each line of standard input, a request, and writes its answer as a line when it
 * comes.
 */
@Configuration
@EnableKafka
public class Spring {
  static final String RUN = System.getenv("CLIENTS_RUN");
  static final String BROKERS = System.getenv("A2ABUS_TEST_KAFKA");
  static final ObjectMapper JSON = new ObjectMapper();

  @Bean
  ProducerFactory<String, String> producers() {
    return new DefaultKafkaProducerFactory<>(
        Map.of("bootstrap.servers", BROKERS), new StringSerializer(), new StringSerializer());
  }

  @Bean
  ConsumerFactory<String, String> consumers() {
    Map<String, Object> properties =
        Map.of("bootstrap.servers", BROKERS, "group.id", RUN + "-spring", "auto.offset.reset", "earliest");
    return new DefaultKafkaConsumerFactory<>(properties, new StringDeserializer(), new StringDeserializer());
  }

  @Bean
  ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory() {
    var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
    factory.setConsumerFactory(consumers());
    factory.setReplyTemplate(new KafkaTemplate<>(producers()));
    return factory;
  }

  @Bean
  Agent agent() {
    return new Agent();
  }

  /** Answers as agents.py does. Each element of the list is a record of its own. */
  public static class Agent {
    @KafkaListener(topics = "#{systemEnvironment['CLIENTS_RUN'] + '.agents.kafka-spring'}")
    @SendTo
    public List<String> answer(String body) throws Exception {
      JsonNode request = JSON.readTree(body);
      JsonNode params = request.path("params");
      JsonNode options = params.has("arguments") ? params.path("arguments") : params.path("metadata");
      List<String> answers = new ArrayList<>();
      switch (options.path("behave").asText()) {
        case "unary" -> answers.add(response(request, "result", weather(options)));
        case "error" -> {
          ObjectNode error = JSON.createObjectNode().put("code", -32050).put("message", "no such city");
          answers.add(response(request, "error", error));
        }
        case "twice" -> {
          for (int number : new int[] {1, 2}) {
            answers.add(response(request, "result", weather(options).put("answer", number)));
          }
        }
        case "stream" -> {
          for (int part = 1; part <= 5; part++) {
            answers.add(response(request, "result", update(options, part)));
          }
        }
        default -> {}
      }
      return answers;
    }

    static ObjectNode weather(JsonNode options) {
      return JSON.createObjectNode().put("celsius", -3).set("nonce", options.path("nonce"));
    }

    static ObjectNode update(JsonNode options, int part) {
      ObjectNode data = JSON.createObjectNode().put("part", part).set("nonce", options.path("nonce"));
      ObjectNode update = JSON.createObjectNode().put("taskId", "t-1").put("contextId", "c-1");
      if (part == 5) {
        update.put("kind", "status-update").put("final", true).set("metadata", data);
        update.putObject("status").put("state", "completed");
      } else {
        update.put("kind", "artifact-update");
        ObjectNode artifact = update.putObject("artifact").put("artifactId", "a-1");
        artifact.putArray("parts").addObject().put("kind", "data").set("data", data);
      }
      return update;
    }

    static String response(JsonNode request, String member, JsonNode value) throws Exception {
      ObjectNode response = JSON.createObjectNode().put("jsonrpc", "2.0");
      response.set("id", request.get("id"));
      response.set(member, value);
      return JSON.writeValueAsString(response);
    }
  }

  public static void main(String[] arguments) throws Exception {
    try (var context = new AnnotationConfigApplicationContext(Spring.class)) {
      Spring spring = context.getBean(Spring.class);
      var replies = new ContainerProperties(new TopicPartitionOffset(RUN + ".replies.template", 0));
      var template =
          new ReplyingKafkaTemplate<String, String, String>(
              spring.producers(), new KafkaMessageListenerContainer<>(spring.consumers(), replies));
      template.setDefaultReplyTimeout(Duration.ofSeconds(120));
      template.afterPropertiesSet();
      template.start();
      System.out.println("ready");
      try (var lines = new BufferedReader(new InputStreamReader(System.in))) {
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          ask(template, line);
        }
      }
      template.destroy();
    }
  }

  static void ask(ReplyingKafkaTemplate<String, String, String> template, String request) throws Exception {
    JsonNode id = JSON.readTree(request).get("id");
    var sent = template.sendAndReceive(new ProducerRecord<String, String>(RUN + ".requests", request));
    sent.whenComplete(
        (answer, failed) -> {
          ObjectNode problem = JSON.createObjectNode().put("problem", String.valueOf(failed)).set("id", id);
          System.out.println(failed == null ? answer.value().replace("\n", " ") : problem.toString());
        });
  }
}
