// The session, lease and registration protocol of one producer rank and one consumer rank, for the model checker spin.
//
// Two requests of the consumer's engine are written, one after the other, into the same blocks; messages cross, writes
// land late or fail, connections break, either process is killed and started again, and the producer may be stopped
// between any two of its steps. README.md beside this file says what the model leaves out and how to read a finding.
//
//   FENCING    the consumer's disconnect stops what is under way, and writes may outlive the writer (UCX).
//              Without it: nothing but the writer's word or its death ends a write (cma).
//   TROUBLES   how many of them a run may have; each costs a connection at most
//   LAPSES     how often all leases may run out
//   SIGHTS     looks whether what the proof is about occurs at all
//   PLANT_x    puts the mistake x into the protocol; spin must find it

#ifndef TROUBLES
#define TROUBLES 2
#endif
#ifndef LAPSES
#define LAPSES 1
#endif

#define REQUESTS 2                // each has one registration, of the same number
#define TRANSFERS 2               // of the producer's engine, from the same source blocks
#define BATCHES 2                 // of a registration; each writes one cell of memory
#define CONNECTIONS 3             // one, and one more after each trouble: TROUBLES is at most 2
#define INCARNATIONS 3            // of either process
#define UNREAD 8                  // messages in one direction of a connection: asserted to be enough

#define NONE 255
#define GARBAGE 0                 // what an engine leaves in a block; the KV of transfer x is x + 1
#define ENGINE 0                  // owns the consumer's blocks; else request r does, as r + 1

// The states of kvpush/protocol/consumer.h and producer.h, by the same names.
mtype:Link = { Link_kResolving, Link_kStarting, Link_kReady, Link_kWaiting };
mtype:ConsumerSession = {
  ConsumerSession_kDialling, ConsumerSession_kGreeting, ConsumerSession_kWelcomed, ConsumerSession_kAssigning,
  ConsumerSession_kReady
};
mtype:Part = { Part_kRegistered, Part_kRevoking, Part_kOpen, Part_kDelivered, Part_kQuiescent };
mtype:ProducerSession = {
  ProducerSession_kNew, ProducerSession_kWelcomed, ProducerSession_kConnecting, ProducerSession_kReady
};
mtype:Registration = { Registration_kWaiting, Registration_kWriting, Registration_kStopping };

// The messages of kvpush/wire/message.h. Writing changes nothing but how often the consumer polls.
mtype:Message = {
  Hello, Welcome, Assign, Assigned, Refused, Register, Delivered, Failed, Quiet, Revoke, Revoked, Done, Renew, Renewed
};

// A request of the consumer's engine, and a batch on the wire: the code keeps them as table entries.
mtype:Request = { Request_pending, Request_registered, Request_ended };
mtype:Write = { Write_posted, Write_landed, Write_stray };  // stray: failed at the producer, and may land yet

// ---- the world -----------------------------------------------------------------------------------------------------

byte troubles = TROUBLES;
byte term = 0;                    // how many leases have run out

// Connections, in the order in which the consumer dials them: the index is the session number too. Whoever still holds
// an end reads what was sent before the other end was closed, or loses it: TCP promises neither.
chan to_p[CONNECTIONS] = [UNREAD] of { mtype:Message, byte, byte };
chan to_c[CONNECTIONS] = [UNREAD] of { mtype:Message, byte, byte };
bool p_open[CONNECTIONS];
bool c_open[CONNECTIONS];
byte connection_last = NONE;
byte c_incarnation_of[CONNECTIONS];
byte p_incarnation_of[CONNECTIONS];

byte owner = ENGINE;              // of the consumer's blocks
byte cell[BATCHES] = GARBAGE;
byte source = NONE;               // the transfer for which the producer's blocks are held
mtype:Write write[REQUESTS * BATCHES];

// ---- what must never be true ---------------------------------------------------------------------------------------

bool landed_after_give_back;      // invariant 1
bool read_after_give_back;        // invariant 2
bool ready_with_wrong_bytes;      // invariant 3
bool ended_twice;                 // invariant 4
bool ended_differently;           // invariant 4: the producer says delivered and the consumer hears otherwise
bool never_ended;                 // invariant 4
bool something_remains;           // invariant 5
bool proof_unasked;               // Quiet or Revoked for a registration that nobody wanted to end

// ---- the consumer --------------------------------------------------------------------------------------------------

byte c_incarnation = 0;
mtype:Link link;                  // 0: no request has asked for the engine
byte link_incarnation;            // of the producer, as its directory says
byte c_connection = NONE;         // of the link's session
mtype:ConsumerSession c_session;
byte done;                        // told as Done in this session
bool c_peer[CONNECTIONS];         // the session's endpoint; kept after the session while it is watched

byte received = 0;                // requests so far
byte registered = 0;              // of them: the last registration's number
mtype:Request request[REQUESTS];
byte transfer_of[REQUESTS];
bool failure[REQUESTS];
mtype:Part part[REQUESTS];
byte peer_of[REQUESTS];           // the connection of the session it was registered in
byte registered_with[REQUESTS];   // the producer's incarnation

// ---- the producer --------------------------------------------------------------------------------------------------

byte p_incarnation = 0;
mtype:ProducerSession p_session[CONNECTIONS];
bool p_peer[CONNECTIONS];
bool leased[CONNECTIONS];
byte asked[CONNECTIONS];          // 1 + when the last Renew left
byte consumer_connection[INCARNATIONS] = NONE;
byte consumer_session[INCARNATIONS] = NONE;
byte consumer_done[INCARNATIONS];

mtype:Registration registration[REQUESTS];
byte made_in[REQUESTS];           // connection
byte wants[REQUESTS];             // transfer
byte cursor[REQUESTS];
byte in_flight[REQUESTS];
bool revoked[REQUESTS];
bool p_failure[REQUESTS];
bool failure_told[REQUESTS];
mtype:Message outcome[REQUESTS];
bool outcome_quiescent[REQUESTS];
byte checked = NONE;              // the registration whose batch is about to be posted: a stop here is what leases fear
bool p_delivered[REQUESTS];       // of this incarnation
bool p_ended[REQUESTS];
#ifdef PLANT_NO_CHECK
bool in_line[REQUESTS];
#endif

bool sent[TRANSFERS];             // the engine said Send, or Withdraw
bool ending[TRANSFERS];
bool closed[TRANSFERS];
bool delivered[TRANSFERS];
byte bound_to[TRANSFERS] = NONE;  // incarnation of the consumer
bool unbound[TRANSFERS];

// Within one step.
hidden byte i;
hidden byte j;
hidden byte up_to;
hidden mtype:Message kind;
hidden byte a;
hidden byte b;
// Chosen by a step; 0 between steps.
byte c;
byte r;
byte x;

// ONLY=x asks for x alone: a mistake often shows in several ways.
#ifdef ONLY
#define must_not(x) assert(!ONLY)
#else
#define must_not(x) assert(!x)
#endif

inline tell_p(connection, message, first, second) {
  if
  :: p_open[connection] -> to_p[connection] ! message, first, second
  :: else
  fi
}

inline tell_c(connection, message, first, second) {
  if
  :: c_open[connection] -> to_c[connection] ! message, first, second
  :: else
  fi
}

inline close_p(connection) {
  p_open[connection] = false;
  do
  :: nempty(to_p[connection]) -> to_p[connection] ? _, _, _
  :: empty(to_p[connection]) -> break
  od
}

inline close_c(connection) {
  c_open[connection] = false;
  do
  :: nempty(to_c[connection]) -> to_c[connection] ? _, _, _
  :: empty(to_c[connection]) -> break
  od
}

// ---- consumer: requests (consumer_request.cc) ----------------------------------------------------------------------

inline tell_done() {
  up_to = registered;
  if
  :: registered > 0 && request[registered - 1] == Request_registered -> up_to = registered - 1
  :: else
  fi;
  if
  :: done < up_to -> done = up_to; tell_p(c_connection, Done, up_to, 0)
  :: else
  fi
}

inline give_back(q) {
  ended_twice = (request[q] == Request_ended);
  must_not(ended_twice);
  request[q] = Request_ended;
  part[q] = 0;
  failure[q] = false;
  owner = ENGINE;
  for (j : 0 .. BATCHES - 1) { cell[j] = GARBAGE }
}

inline settle_part(q, state) {
  if
  :: state == Part_kDelivered ->
     for (j : 0 .. BATCHES - 1) {
       ready_with_wrong_bytes = (cell[j] != transfer_of[q] + 1);
       must_not(ready_with_wrong_bytes)
     }
  :: else
  fi;
  give_back(q);
  if
  :: link == Link_kReady && link_incarnation == registered_with[q] -> tell_done()
  :: else
  fi;
  if
  :: peer_of[q] != c_connection -> c_peer[peer_of[q]] = false
  :: else
  fi
}

inline register_request(q) {
  registered = q + 1;
  request[q] = Request_registered;
  part[q] = Part_kRegistered;
  peer_of[q] = c_connection;
  registered_with[q] = link_incarnation;
  tell_p(c_connection, Register, q, transfer_of[q])
}

inline revoke(q) {
  if
  :: link == Link_kReady && link_incarnation == registered_with[q] &&
     (part[q] == Part_kRegistered || part[q] == Part_kOpen) ->
     part[q] = Part_kRevoking;
     tell_p(c_connection, Revoke, q, 0);
#ifdef PLANT_RELEASE_ON_REVOKE
     settle_part(q, Part_kQuiescent)
#endif
  :: else
  fi
}

inline fail_request(q) {
  failure[q] = true;
  if
  :: request[q] == Request_pending -> give_back(q)
  :: else -> revoke(q)
  fi
}

// Quiet, Revoked or Failed{quiescent} came.
inline settle_as_told(q) {
  proof_unasked = !failure[q];
  must_not(proof_unasked);
  ended_differently = p_delivered[q];
  must_not(ended_differently);
  settle_part(q, Part_kQuiescent)
}

// ---- consumer: the link and its session (consumer_link.cc) -----------------------------------------------------------

inline end_link() {
  close_c(c_connection);
  link = Link_kWaiting;
  c_session = 0;
  done = 0;
#ifdef FENCING
  c_peer[c_connection] = false;
#endif
  i = c_connection;
  c_connection = NONE;
  if
  :: received > 0 && request[received - 1] == Request_registered ->
     failure[received - 1] = true;
     part[received - 1] = Part_kOpen;
#ifdef FENCING
     settle_part(received - 1, Part_kQuiescent)
#else
     if
     :: peer_of[received - 1] != i -> c_peer[i] = false
     :: else
     fi
#endif
  :: else -> c_peer[i] = false
  fi
}

inline refuse_producer() {
  tell_p(c_connection, Refused, 0, 0);
  end_link()
}

inline on_link_ready() {
  link = Link_kReady;
  tell_done();
  if
  :: received == 0 || request[received - 1] == Request_ended
  :: else ->
     if
     :: request[received - 1] == Request_pending -> register_request(received - 1)
     :: else -> revoke(received - 1)
     fi
  fi
}

#define is_late(q) (request[q] != Request_registered)  // counted, and ignored

inline c_on_message() {
  if
  :: kind == Welcome ->
     if
     :: a != link_incarnation -> refuse_producer()
     :: else ->
        c_session = ConsumerSession_kWelcomed;
        // The only rank is welcomed, so ranks are assigned, and the transport connects at once.
        c_session = ConsumerSession_kAssigning;
        c_peer[c_connection] = true;
        tell_p(c_connection, Assign, 0, 0)
     fi
  :: kind == Assigned -> c_session = ConsumerSession_kReady; on_link_ready()
  :: kind == Refused -> end_link()
  :: kind == Delivered && !is_late(a) -> settle_part(a, Part_kDelivered)
  :: kind == Failed && !is_late(a) ->
     failure[a] = true;
     if
     :: b -> settle_as_told(a)
     :: else -> part[a] = Part_kRevoking
     fi
  :: (kind == Quiet || kind == Revoked) && !is_late(a) -> settle_as_told(a)
  :: (kind == Delivered || kind == Failed || kind == Quiet || kind == Revoked) && is_late(a)
  :: kind == Renew -> tell_p(c_connection, Renewed, a, 0)
  fi
}

proctype Consumer() {
  byte which;
end:
  do
  // The engine.
  :: atomic {
       received < REQUESTS && owner == ENGINE ->
       if
       :: transfer_of[received] = received
       :: received > 0 -> transfer_of[received] = 0  // the same transfer once more
       fi;
       d_step {
         owner = received + 1;
         request[received] = Request_pending;
         received++;
         if
         :: link == Link_kReady -> register_request(received - 1)
         :: link == 0 -> link = Link_kResolving
         :: else
         fi
       }
     }
  :: d_step {  // Abandon, or a deadline of the request
       owner != ENGINE && !failure[owner - 1] -> which = owner - 1; fail_request(which); which = 0
     }

  // The link.
  :: d_step { link == Link_kResolving -> link_incarnation = p_incarnation; link = Link_kStarting }
  :: d_step {
       link == Link_kStarting && c_session == 0 ->
       if
       :: connection_last == NONE -> connection_last = 0
       :: else -> connection_last++
       fi;
       c_connection = connection_last;
       c_session = ConsumerSession_kDialling;
       c_open[c_connection] = true;
       p_open[c_connection] = true;
       c_incarnation_of[c_connection] = c_incarnation;
       p_incarnation_of[c_connection] = p_incarnation;
       p_session[c_connection] = ProducerSession_kNew
     }
  :: d_step {
       c_session == ConsumerSession_kDialling -> c_session = ConsumerSession_kGreeting; tell_p(c_connection, Hello, 0, 0)
     }
  :: d_step {
       link == Link_kWaiting ->
       if
       :: owner == ENGINE -> link = 0
       :: else -> link = Link_kResolving
       fi
     }
  :: d_step {
       c_connection != NONE && nempty(to_c[c_connection]) -> to_c[c_connection] ? kind, a, b; c_on_message()
     }
  :: d_step { c_connection != NONE && !p_open[c_connection] -> end_link() }
  :: d_step { c_connection != NONE && troubles > 0 -> troubles--; end_link() }  // silence, or no proof in time

#ifndef FENCING
  // The kernel says that the process behind the endpoint of a registration is gone.
  :: d_step {
       owner != ENGINE && part[owner - 1] != 0 && c_peer[peer_of[owner - 1]] &&
       p_incarnation_of[peer_of[owner - 1]] != p_incarnation ->
       which = owner - 1;
       failure[which] = true;
       settle_part(which, Part_kQuiescent);
       if
       :: peer_of[which] == c_connection -> end_link()
       :: else
       fi;
       which = 0
     }
#endif
#ifdef PLANT_LEASE_IS_PROOF
  // Even if nothing is under way: the producer may have checked, and not yet posted.
  :: d_step {
       link == Link_kWaiting && owner != ENGINE && part[owner - 1] == Part_kOpen && !leased[peer_of[owner - 1]] &&
       write[(owner - 1) * BATCHES] != Write_posted && write[(owner - 1) * BATCHES + 1] != Write_posted ->
       which = owner - 1; settle_part(which, Part_kQuiescent); which = 0
     }
#endif
  od
}

// ---- producer: registrations and transfers (producer_transfer.cc) --------------------------------------------------

#define incarnation_of(q) c_incarnation_of[made_in[q]]

inline answer(q, message, second) {
  if
  :: consumer_connection[incarnation_of(q)] != NONE ->
     tell_c(consumer_connection[incarnation_of(q)], message, q, second)
  :: else
  fi
}

inline keep(q, message, quiescent) {
  if
#ifdef PLANT_FORGET
  :: consumer_connection[incarnation_of(q)] != NONE  // told, and that is that
#endif
#ifndef PLANT_KEEP_AFTER_DONE
  :: q < consumer_done[incarnation_of(q)]
#endif
  :: else -> outcome[q] = message; outcome_quiescent[q] = quiescent
  fi
}

#define has_registrations(y) \
  ((registration[0] != 0 && wants[0] == y) || (registration[1] != 0 && wants[1] == y))

inline settle_transfer(y) {
  if
  :: has_registrations(y)
  :: else ->
     if
     :: source == y && (ending[y] || delivered[y]) ->  // SendEnded: the engine has its blocks again
        source = NONE; closed[y] = true; ending[y] = false; delivered[y] = false; bound_to[y] = NONE; unbound[y] = false
     :: source != y -> bound_to[y] = NONE; unbound[y] = false
     :: else
     fi
  fi
}

inline end_registration(q, is_delivered) {
  ended_twice = p_ended[q];
  must_not(ended_twice);
  p_ended[q] = true;
  p_delivered[q] = is_delivered;
  registration[q] = 0;
#ifndef PLANT_NO_CHECK
  cursor[q] = 0;
#endif
  revoked[q] = false;
  p_failure[q] = false;
  failure_told[q] = false;
  if
  :: is_delivered -> delivered[wants[q]] = true
  :: else ->
     if
     :: !has_registrations(wants[q]) -> unbound[wants[q]] = true
     :: else
     fi
  fi;
  settle_transfer(wants[q])
}

#ifdef PLANT_EARLY_DELIVERED
#define is_written(q) (cursor[q] == BATCHES)
#else
#define is_written(q) (cursor[q] == BATCHES && in_flight[q] == 0)
#endif
#ifdef PLANT_EARLY_REVOKED
#define is_stopped(q) (in_flight[q] == 0 || revoked[q])
#else
#define is_stopped(q) (in_flight[q] == 0)
#endif

inline settle(q) {
  if
  :: registration[q] == Registration_kWriting && is_written(q) ->
     keep(q, Delivered, 1);
     answer(q, Delivered, 1);
     end_registration(q, true)
  :: registration[q] == Registration_kStopping && is_stopped(q) ->
     if
     :: p_failure[q] ->
        keep(q, Failed, 1);
        if
        :: failure_told[q] -> answer(q, Quiet, 0)
        :: else -> answer(q, Failed, 1)
        fi
     :: else
     fi;
     if
     :: revoked[q] -> answer(q, Revoked, 0)
     :: else
     fi;
     end_registration(q, false)
  :: else
  fi
}

inline fail_registration(q) {
  if
  :: registration[q] == 0 || p_failure[q] || revoked[q]
  :: else ->
     p_failure[q] = true;
     registration[q] = Registration_kStopping;
     if
     :: in_flight[q] > 0 -> failure_told[q] = true; keep(q, Failed, 0); answer(q, Failed, 0)
     :: else
     fi;
     settle(q)
  fi
}

inline start(q) {
  registration[q] = Registration_kWriting;
#ifdef PLANT_NO_CHECK
  in_line[q] = true
#endif
}

inline end_request(y) {
  ending[y] = true;
  for (i : 0 .. REQUESTS - 1) {
    if
    :: registration[i] != 0 && wants[i] == y -> fail_registration(i)
    :: else
    fi
  }
#ifdef PLANT_EARLY_CANCEL
  if
  :: source == y -> source = NONE; closed[y] = true
  :: else
  fi
#else
  settle_transfer(y)
#endif
}

// ---- producer: sessions (producer_session.cc) ----------------------------------------------------------------------

#define posted_to(n) \
  ((registration[0] != 0 && made_in[0] == n && in_flight[0] > 0) || \
   (registration[1] != 0 && made_in[1] == n && in_flight[1] > 0))

// Disconnects the endpoint of an ended session once no batch of it is in flight.
inline cut_if_quiet(n) {
  if
  :: p_session[n] == 0 && !posted_to(n) -> p_peer[n] = false
  :: else
  fi
}

inline end_session(n) {
  close_p(n);
  p_session[n] = 0;
  leased[n] = false;
  asked[n] = 0;
  if
  :: consumer_connection[c_incarnation_of[n]] == n -> consumer_connection[c_incarnation_of[n]] = NONE
  :: else
  fi;
  if
  :: p_peer[n] ->
     for (i : 0 .. REQUESTS - 1) {
       if
       :: registration[i] != 0 && made_in[i] == n -> fail_registration(i)
       :: else
       fi
     }
     cut_if_quiet(n)
  :: else
  fi
}

inline refuse_consumer(n) {
  tell_c(n, Refused, 0, 0);
  end_session(n)
}

inline on_hello(n) {
  if
  :: consumer_session[c_incarnation_of[n]] != NONE && n <= consumer_session[c_incarnation_of[n]] -> refuse_consumer(n)
  :: else ->
     up_to = consumer_connection[c_incarnation_of[n]];  // the older session
     consumer_session[c_incarnation_of[n]] = n;
#ifndef PLANT_OLD_SESSION
     if
     :: up_to != NONE -> end_session(up_to)
     :: else
     fi;
#endif
     consumer_connection[c_incarnation_of[n]] = n;
     p_session[n] = ProducerSession_kWelcomed;
     tell_c(n, Welcome, p_incarnation, 0)
  fi
}

inline on_register(n, q, y) {
  made_in[q] = n;
  wants[q] = y;
  if
  :: closed[y] || ending[y] || (bound_to[y] != NONE && bound_to[y] != c_incarnation_of[n] && !unbound[y]) ->
     p_ended[q] = true;
     keep(q, Failed, 1);
     answer(q, Failed, 1)
  :: else ->
     if
     :: bound_to[y] != c_incarnation_of[n] -> delivered[y] = false
     :: else
     fi;
     bound_to[y] = c_incarnation_of[n];
     unbound[y] = false;
     registration[q] = Registration_kWaiting;
     if
     :: source == y -> start(q)
     :: else
     fi
  fi
}

inline on_revoke(n, q) {
  if
  :: registration[q] != 0 -> revoked[q] = true; registration[q] = Registration_kStopping; settle(q)
  :: else ->
     if
     :: outcome[q] != 0 -> tell_c(n, outcome[q], q, outcome_quiescent[q])
     :: else
     fi;
#ifndef PLANT_SILENT_REVOKE
     tell_c(n, Revoked, q, 0)
#endif
  fi
}

inline ask_for_renewal(n) {
  asked[n] = term + 1;
  tell_c(n, Renew, term, 0)
}

inline p_on_message(n) {
  if
  :: kind == Hello -> on_hello(n)
  :: kind == Assign ->
     p_session[n] = ProducerSession_kConnecting;
     // The transport answers at once.
     p_session[n] = ProducerSession_kReady;
     p_peer[n] = true;
     tell_c(n, Assigned, 0, 0);
     ask_for_renewal(n)
  :: kind == Refused -> end_session(n)
  :: kind == Register -> on_register(n, a, b)
  :: kind == Revoke -> on_revoke(n, a)
  :: kind == Done ->
     consumer_done[c_incarnation_of[n]] = a;
     for (i : 0 .. REQUESTS - 1) {
       if
       :: i < a && incarnation_of(i) == c_incarnation_of[n] -> outcome[i] = 0; outcome_quiescent[i] = false
       :: else
       fi
     }
  :: kind == Renewed -> leased[n] = (a == term)
  fi
}

// A batch of registration q has ended; it left the wire in whatever state.
inline on_written(q, is_error) {
  in_flight[q]--;
  if
  :: is_error && p_session[made_in[q]] != 0 -> end_session(made_in[q])
  :: else
  fi;
  cut_if_quiet(made_in[q]);
  settle(q)
}

#ifdef FENCING
#define is_reachable(n) (c_peer[n] && c_incarnation_of[n] == c_incarnation)
#else
#define is_reachable(n) (c_incarnation_of[n] == c_incarnation)
#endif

#ifdef PLANT_NO_CHECK
#define may_post(q) (in_line[q] && cursor[q] < BATCHES)
#else
#define may_post(q) (registration[q] == Registration_kWriting && cursor[q] < BATCHES && leased[made_in[q]])
#endif

#define is_unread(n) (p_open[n] && nempty(to_p[n]))
#define is_over(n) (p_open[n] && !c_open[n])
#define wants_renewal(n) \
  (p_session[n] == ProducerSession_kReady && asked[n] < term + 1 && \
   ((registration[0] != 0 && made_in[0] == n) || (registration[1] != 0 && made_in[1] == n)))

// Of writes, by request * BATCHES + batch.
#define connection_of(w) made_in[(w) / BATCHES]
#define is_done(w) (write[w] == Write_landed)
#define must_fail(w) (write[w] == Write_posted && (!p_peer[connection_of(w)] || !is_reachable(connection_of(w))))
#define can_fail(w) \
  (must_fail(w) || (troubles > 0 && (write[w] == Write_posted || write[w] == Write_landed)))
#define can_land(w) (write[w] == Write_posted && is_reachable(connection_of(w)))
#define is_stray(w) (write[w] == Write_stray)
#define is_stuck(q) \
  (registration[q] == Registration_kStopping && in_flight[q] > 0 && p_session[made_in[q]] == 0 && p_peer[made_in[q]])

// It failed. Only where nothing but a fence stops it can it land after that.
inline lose_write(w) {
#ifdef FENCING
  if
  :: write[w] == Write_posted -> write[w] = Write_stray
  :: else -> write[w] = 0
  fi
#else
  write[w] = 0
#endif
}

proctype Producer() {
end:
  do
  // The engine.
  :: atomic {
       checked == NONE && source == NONE && (!sent[0] || !sent[1]) ->
       if
       :: !sent[0] -> x = 0
       :: !sent[1] -> x = 1
       fi;
       if
       :: d_step {  // Send
            sent[x] = true;
            source = x;
            for (i : 0 .. REQUESTS - 1) {
              if
              :: registration[i] == Registration_kWaiting && wants[i] == x -> start(i)
              :: else
              fi
            }
            settle_transfer(x);
            x = 0
          }
       :: d_step { sent[x] = true; closed[x] = true; end_request(x); ending[x] = false; x = 0 }  // Withdraw
       fi
     }
  :: d_step { checked == NONE && source != NONE && !ending[source] -> a = source; end_request(a) }  // Cancel, or hold
  :: atomic {  // the prefill does not come in time
       checked == NONE &&
       (registration[0] == Registration_kWaiting || registration[1] == Registration_kWaiting) ->
       if
       :: registration[0] == Registration_kWaiting -> r = 0
       :: registration[1] == Registration_kWaiting -> r = 1
       fi;
       d_step { fail_registration(r); r = 0 }
     }

  // Sessions.
  :: atomic {
       checked == NONE && (is_unread(0) || is_unread(1) || is_unread(2)) ->
       if
       :: is_unread(0) -> c = 0
       :: is_unread(1) -> c = 1
       :: is_unread(2) -> c = 2
       fi;
       d_step { to_p[c] ? kind, a, b; p_on_message(c); c = 0 }
     }
  :: atomic {
       checked == NONE && (is_over(0) || is_over(1) || is_over(2)) ->
       if
       :: is_over(0) -> c = 0
       :: is_over(1) -> c = 1
       :: is_over(2) -> c = 2
       fi;
       d_step { end_session(c); c = 0 }
     }
  :: atomic {  // silence, or writes that do not end in time
       checked == NONE && troubles > 0 && (p_open[0] || p_open[1] || p_open[2]) ->
       if
       :: p_open[0] -> c = 0
       :: p_open[1] -> c = 1
       :: p_open[2] -> c = 2
       fi;
       d_step { troubles--; end_session(c); c = 0 }
     }
  :: d_step { checked == NONE && wants_renewal(0) -> ask_for_renewal(0) }
  :: d_step { checked == NONE && wants_renewal(1) -> ask_for_renewal(1) }
  :: d_step { checked == NONE && wants_renewal(2) -> ask_for_renewal(2) }

  // Writes.
  :: d_step { checked == NONE && may_post(0) -> checked = 0 }
  :: d_step { checked == NONE && may_post(1) -> checked = 1 }
  :: d_step {
       checked != NONE ->
       write[checked * BATCHES + cursor[checked]] = Write_posted;
       cursor[checked]++;
       in_flight[checked]++;
       checked = NONE
     }
  :: atomic {
       checked == NONE && (is_done(0) || is_done(1) || is_done(2) || is_done(3)) ->
       if
       :: is_done(0) -> x = 0
       :: is_done(1) -> x = 1
       :: is_done(2) -> x = 2
       :: is_done(3) -> x = 3
       fi;
       d_step { write[x] = 0; a = x / BATCHES; on_written(a, false); x = 0 }
     }
  :: atomic {
       checked == NONE && (can_fail(0) || can_fail(1) || can_fail(2) || can_fail(3)) ->
       if
       :: can_fail(0) -> x = 0
       :: can_fail(1) -> x = 1
       :: can_fail(2) -> x = 2
       :: can_fail(3) -> x = 3
       fi;
       d_step {
         if
         :: must_fail(x)
         :: else -> troubles--
         fi;
         lose_write(x);
         a = x / BATCHES;
         on_written(a, true);
         x = 0
       }
     }
  :: d_step { checked == NONE && is_stuck(0) -> p_peer[made_in[0]] = false }  // drain_limit: the endpoint is closed
  :: d_step { checked == NONE && is_stuck(1) -> p_peer[made_in[1]] = false }
  od
}

// ---- everything else -------------------------------------------------------------------------------------------------

inline land(w) {
  landed_after_give_back = (owner != 1 + w / BATCHES);
  must_not(landed_after_give_back);
  cell[w % BATCHES] = wants[w / BATCHES] + 1
}

inline kill_producer() {
  p_incarnation++;
  for (i : 0 .. CONNECTIONS - 1) {
    close_p(i);
    p_session[i] = 0;
    p_peer[i] = false;
    leased[i] = false;
    asked[i] = 0
  }
  for (i : 0 .. INCARNATIONS - 1) {
    consumer_connection[i] = NONE;
    consumer_session[i] = NONE;
    consumer_done[i] = 0
  }
  for (i : 0 .. REQUESTS - 1) {
    if
    :: registration[i] != 0 -> p_ended[i] = true
    :: else
    fi;
    registration[i] = 0;
    cursor[i] = 0;
    in_flight[i] = 0;
    revoked[i] = false;
    p_failure[i] = false;
    failure_told[i] = false;
    outcome[i] = 0;
    outcome_quiescent[i] = false;
    p_delivered[i] = false
  }
  for (i : 0 .. TRANSFERS - 1) {
    ending[i] = false;
    closed[i] = false;
    delivered[i] = false;
    bound_to[i] = NONE;
    unbound[i] = false
  }
  for (i : 0 .. REQUESTS * BATCHES - 1) {
    if
    :: write[i] == Write_posted -> lose_write(i)
    :: write[i] == Write_landed -> write[i] = 0
    :: else
    fi
  }
  checked = NONE;
  source = NONE
}

inline kill_consumer() {
  c_incarnation++;
  if
  :: c_connection != NONE -> close_c(c_connection)
  :: else
  fi;
  c_connection = NONE;
  link = 0;
  c_session = 0;
  done = 0;
  for (i : 0 .. CONNECTIONS - 1) { c_peer[i] = false }
  if
  :: owner != ENGINE -> i = owner - 1; give_back(i)
  :: else
  fi
}

proctype World() {
end:
  do
  :: atomic {
       can_land(0) || can_land(1) || can_land(2) || can_land(3) ->
       if
       :: can_land(0) -> x = 0
       :: can_land(1) -> x = 1
       :: can_land(2) -> x = 2
       :: can_land(3) -> x = 3
       fi;
       d_step {
         read_after_give_back = (source != wants[x / BATCHES]);
         must_not(read_after_give_back);
         land(x);
         write[x] = Write_landed;
         x = 0
       }
     }
#ifdef FENCING
  :: atomic {
       is_stray(0) || is_stray(1) || is_stray(2) || is_stray(3) ->
       if
       :: is_stray(0) -> x = 0
       :: is_stray(1) -> x = 1
       :: is_stray(2) -> x = 2
       :: is_stray(3) -> x = 3
       fi;
       d_step {
         if
         :: is_reachable(made_in[x / BATCHES]) -> land(x)
         :: else
         fi;
         write[x] = 0;
         x = 0
       }
     }
#endif
  :: d_step { term < LAPSES -> for (i : 0 .. CONNECTIONS - 1) { leased[i] = false }; term++ }
  :: d_step { troubles > 0 -> troubles--; kill_producer() }
  :: d_step { troubles > 0 -> troubles--; kill_consumer() }
  od
}

// Once nothing can happen any more, nothing must be left to happen.
proctype Observer() {
  timeout ->
  d_step {
    for (i : 0 .. REQUESTS - 1) {
      never_ended = (request[i] != Request_ended || registration[i] != 0);
      must_not(never_ended)
    }
    something_remains = (source != NONE || owner != ENGINE || checked != NONE);
    must_not(something_remains);
    for (i : 0 .. REQUESTS * BATCHES - 1) {
      something_remains = (write[i] != 0);
      must_not(something_remains)
    }
    for (i : 0 .. TRANSFERS - 1) {
      something_remains = (ending[i] || delivered[i] || bound_to[i] != NONE);
      must_not(something_remains)
    }
    for (i : 0 .. CONNECTIONS - 1) {
      // Endpoints of the session that is open, if one is.
      something_remains = ((c_peer[i] || p_peer[i]) && i != c_connection);
      must_not(something_remains);
      something_remains = (nempty(to_p[i]) || nempty(to_c[i]) || p_open[i] != c_open[i]);
      must_not(something_remains)
    }
    for (i : 0 .. REQUESTS - 1) {
      // Of a consumer that is connected; without a session, outcome_timeout ends them.
      something_remains = (outcome[i] != 0 && link == Link_kReady && incarnation_of(i) == c_incarnation);
      must_not(something_remains)
    }
  }
}

#ifdef SIGHTS
// Situations that must occur, or the model would prove little. Each option is a step from a state to itself.
proctype Sights() {
end:
  do
  :: p_delivered[0] && p_delivered[1]
  :: request[0] == Request_ended && request[1] == Request_registered && transfer_of[1] == 0 && cursor[1] == BATCHES
  :: checked == 0 && !leased[made_in[0]]  // stopped between check and post while its lease ran out
  :: part[0] == Part_kRevoking && cursor[0] == 1 && in_flight[0] == 1
  :: registration[0] == Registration_kWriting && made_in[0] == 0 && c_connection == 1  // one side knows of the loss
  :: is_unread(0) && c_connection == 1 && c_session == ConsumerSession_kReady && consumer_connection[0] == 0
  :: p_session[0] == ProducerSession_kNew && consumer_session[0] == 1  // its Hello is stale
  :: outcome[0] == Delivered && link == Link_kStarting
  :: failure_told[0] && part[0] == Part_kOpen
  :: p_incarnation == 1 && registration[1] == Registration_kWriting
  :: c_incarnation == 1 && registration[0] == Registration_kStopping && registration[1] == Registration_kWaiting
#ifdef FENCING
  :: is_stray(0) && request[0] == Request_ended && request[1] == Request_registered
  :: write[0] == Write_posted && registration[1] == Registration_kWriting
#else
  :: part[0] == Part_kOpen && link == Link_kStarting && link_incarnation != registered_with[0]
  :: write[0] == Write_posted && part[0] == Part_kRevoking && peer_of[0] != c_connection
#endif
  od
}
#endif

init {
  atomic {
    run Consumer();
    run Producer();
    run World();
#ifdef SIGHTS
    run Sights()
#else
    run Observer()
#endif
  }
}
