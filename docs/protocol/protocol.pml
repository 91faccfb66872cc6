// The session, lease and registration protocol of one producer rank and one consumer rank, for the model checker spin.
//
// Two requests of the consumer's engine are written, one after the other, into the same blocks; messages cross, writes
// land late or fail, connections break and requests are registered again, either process is killed and started again,
// and the producer may be stopped between any two of its steps. README.md beside this file says what the model leaves
// out and how to read a finding.
//
//   FENCING    the consumer's disconnect stops what is under way, and writes may outlive the writer (UCX).
//              Without it: nothing but the writer's word or its death ends a write (cma).
//   TROUBLES   how many of them a run may have; each costs a connection at most
//   LAPSES     how often all leases may run out; where it is 0 they are held from the start, and not renewed
//   SIGHTS     looks whether what the proof is about occurs at all
//   PLANT_x    puts the mistake x into the protocol; spin must find it

#ifndef TROUBLES
#define TROUBLES 2
#endif
#ifndef LAPSES
#define LAPSES 1
#endif

#define REQUESTS 2
#define TRANSFERS 2               // of the producer's engine, from the same source blocks
#define CONNECTIONS 3             // one, and one more after each trouble: TROUBLES is at most 2
#define REGISTRATIONS 4           // one of each request, and one more after each trouble
#define BATCHES 2                 // of a registration; each writes one cell of memory
#define SESSIONS_OF_REQUEST_MAX 2  // kSessionsOfRequestMax: with it, two troubles show what the last loss does
#define INCARNATIONS 3            // of either process
#define UNREAD 10                 // messages in one direction of a connection: asserted to be enough

#define NONE 255
#define GARBAGE 0                 // what an engine leaves in a block; the KV of transfer x is x + 1
#define ENGINE 0                  // owns the consumer's blocks; else request r does, as r + 1

// What Failed says, of kvpush/base/error.h; kAborted stands for all that end a request wherever it is registered.
#define ErrorCode_kAborted 1
#define ErrorCode_kPeerLost 2
#define ErrorCode_kTransportFailed 3
#define OPEN 4                    // is added to the code of a Failed that is not quiescent

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

// A batch on the wire: the code keeps it as a table entry.
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
mtype:Write write[REGISTRATIONS * BATCHES];

// ---- what must never be true ---------------------------------------------------------------------------------------

bool landed_after_give_back;      // invariant 1
bool landed_after_proof;          // invariant 1: quiescent means what it says, also before a request registers again
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
byte registered = 0;              // registrations so far: the next one's number

// Of the request that owns the blocks. All are 0 while none does.
byte transfer;
byte first;                       // number of its first registration
byte losses;
bool loss;                        // it is registered again in the next session, or fails
bool failure;

// Of its last registration, until that has proof.
mtype:Part part;
byte peer;                        // the connection of the session it was made in
byte registered_with;             // the producer's incarnation

// ---- the producer --------------------------------------------------------------------------------------------------

byte p_incarnation = 0;
mtype:ProducerSession p_session[CONNECTIONS];
bool p_peer[CONNECTIONS];
bool leased[CONNECTIONS];
byte asked[CONNECTIONS];          // 1 + when the last Renew left
byte consumer_connection[INCARNATIONS] = NONE;
byte consumer_session[INCARNATIONS] = NONE;
byte consumer_done[INCARNATIONS];

mtype:Registration registration[REGISTRATIONS];
byte made_in[REGISTRATIONS];      // connection
byte wants[REGISTRATIONS];        // transfer
byte cursor[REGISTRATIONS];
byte in_flight[REGISTRATIONS];
bool revoked[REGISTRATIONS];
byte p_failure[REGISTRATIONS];    // ErrorCode
bool failure_told[REGISTRATIONS];
mtype:Message outcome[REGISTRATIONS];
byte outcome_code[REGISTRATIONS];
byte checked = NONE;              // the registration whose batch is about to be posted: a stop here is what leases fear
bool p_delivered;                 // the registration of which the consumer has no proof
#ifdef PLANT_NO_CHECK
bool in_line[REGISTRATIONS];
#endif

bool sent[TRANSFERS];             // the engine said Send, or Withdraw
bool ending[TRANSFERS];
bool closed[TRANSFERS];
bool delivered[TRANSFERS];
byte bound_to[TRANSFERS] = NONE;  // incarnation of the consumer
bool rank_left[TRANSFERS];         // its last registration ended undelivered

// Within one step.
hidden byte i;
hidden byte j;
hidden byte up_to;
hidden byte ended;
hidden byte was_ready;
hidden byte is_cause;
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

// What nobody asks about any more, so that states which differ in nothing else are one.
inline forget(q) {
  if
  :: registration[q] == 0 && outcome[q] == 0 && write[q * BATCHES] == 0 && write[q * BATCHES + 1] == 0 ->
     made_in[q] = 0; wants[q] = 0
  :: else
  fi
}

#ifdef FENCING
// Where they were to land, nothing can.
inline end_strays() {
  for (i : 0 .. REGISTRATIONS * BATCHES - 1) {
    if
    :: write[i] == Write_stray -> write[i] = 0; forget(i / BATCHES)
    :: else
    fi
  }
}
#endif

// ---- consumer: requests (consumer_request.cc) ----------------------------------------------------------------------

inline tell_done() {
  up_to = registered;
  if
  :: part != 0 && registered_with == link_incarnation -> up_to = registered - 1
  :: else
  fi;
  if
  :: done < up_to -> done = up_to; tell_p(c_connection, Done, up_to, 0)
  :: else
  fi
}

inline register_request() {
  loss = false;
  part = Part_kRegistered;
  peer = c_connection;
  registered_with = link_incarnation;
  registered++;
  tell_p(c_connection, Register, registered - 1, transfer)
}

inline give_back() {
  ended_twice = (owner == ENGINE);
  must_not(ended_twice);
  owner = ENGINE;
  transfer = 0;
  first = 0;
  losses = 0;
  loss = false;
  failure = false
}

// The last registration has proof. What it wrote counts for nothing in the next.
inline forget_part() {
  part = 0;
  peer = 0;
  registered_with = 0;
  p_delivered = false;
  for (j : 0 .. BATCHES - 1) { cell[j] = GARBAGE }
}

inline end_if_settled(is_delivered) {
  if
  :: is_delivered || failure -> give_back()
  :: else ->
     assert(loss);
     if
     :: link == Link_kReady -> register_request()
     :: else
     fi
  fi
}

inline settle_part(state) {
  if
  :: state == Part_kDelivered ->
     for (j : 0 .. BATCHES - 1) {
       ready_with_wrong_bytes = (cell[j] != transfer + 1);
       must_not(ready_with_wrong_bytes)
     }
  :: else
  fi;
  part = 0;
  if
  :: link == Link_kReady && link_incarnation == registered_with -> tell_done()
  :: else
  fi;
  if
  :: peer != c_connection -> c_peer[peer] = false
  :: else
  fi;
  forget_part();
  end_if_settled(state == Part_kDelivered)
}

inline revoke() {
  if
  :: link == Link_kReady && link_incarnation == registered_with && (part == Part_kRegistered || part == Part_kOpen) ->
     part = Part_kRevoking;
     tell_p(c_connection, Revoke, registered - 1, 0);
#ifdef PLANT_RELEASE_ON_REVOKE
     settle_part(Part_kQuiescent)
#endif
  :: else
  fi
}

#ifdef FENCING
#define is_fenced (part != 0 && peer != c_connection)
#else
#define is_fenced false
#endif

inline fail_request() {
  failure = true;
  loss = false;  // of no account any more
  if
  :: part == 0 -> give_back()
  :: is_fenced -> settle_part(Part_kQuiescent)
  :: else -> revoke()
  fi
}

inline on_loss() {
  if
  :: part != 0 -> part = Part_kOpen
  :: else
  fi;
  if
  :: !was_ready || failure || losses + 1 == SESSIONS_OF_REQUEST_MAX -> fail_request()
  :: else -> losses++; loss = true
  fi
}

// Quiet, Revoked or Failed{quiescent} came.
inline settle_as_told() {
  proof_unasked = (!failure && !loss);
  must_not(proof_unasked);
  ended_differently = p_delivered;
  must_not(ended_differently);
  settle_part(Part_kQuiescent)
}

// ---- consumer: the link and its session (consumer_link.cc) -----------------------------------------------------------

inline end_link() {
  close_c(c_connection);
  was_ready = (link == Link_kReady);
  link = Link_kWaiting;
  c_session = 0;
  done = 0;
#ifdef FENCING
  c_peer[c_connection] = false;
  end_strays();
#endif
  ended = c_connection;
  c_connection = NONE;
  if
  :: part != 0 || loss -> on_loss()
  :: else
  fi;
  if
  :: part != 0 && peer == ended  // what it writes is watched
  :: else -> c_peer[ended] = false
  fi
}

inline refuse_producer() {
  tell_p(c_connection, Refused, 0, 0);
  end_link()
}

inline on_resolved() {
  link = Link_kStarting;
  if
  :: loss && link_incarnation != p_incarnation -> fail_request()
  :: else
  fi;
  link_incarnation = p_incarnation
}

inline on_link_ready() {
  link = Link_kReady;
  tell_done();
  if
  :: owner == ENGINE
  :: owner != ENGINE && part == 0 -> register_request()
#ifdef PLANT_REGISTER_AGAIN
  :: part != 0 && loss -> settle_part(Part_kQuiescent)
  :: part != 0 && !loss -> revoke()
#else
  :: part != 0 -> revoke()
#endif
  fi
}

#define is_late(n) (part == 0 || n != registered - 1)  // counted, and ignored

// The code of a Failed that is no reason to give up.
#define may_be_fence(code) (is_fenced && code == ErrorCode_kTransportFailed)
#define did_loss(code) (loss && (code == ErrorCode_kPeerLost || may_be_fence(code)))

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
  :: kind == Delivered && !is_late(a) -> settle_part(Part_kDelivered)
  :: kind == Failed && !is_late(a) ->
     if
     :: did_loss(b) ->
        if
        :: may_be_fence(b) -> losses = SESSIONS_OF_REQUEST_MAX - 1  // once: what fails by itself would fail again
        :: else
        fi;
        settle_as_told()
     :: !did_loss(b) && b < OPEN -> failure = true; settle_as_told()
     :: b >= OPEN -> part = Part_kRevoking; fail_request()
     fi
  :: (kind == Quiet || kind == Revoked) && !is_late(a) -> settle_as_told()
  :: (kind == Delivered || kind == Failed || kind == Quiet || kind == Revoked) && is_late(a)
  :: kind == Renew -> tell_p(c_connection, Renewed, a, 0)
  fi
}

proctype Consumer() {
end:
  do
  // The engine.
  :: atomic {
       received < REQUESTS && owner == ENGINE ->
       if
       :: transfer = received
       :: received > 0 -> transfer = 0  // the same transfer once more
       fi;
       d_step {
         received++;
         owner = received;
         first = registered;
         if
         :: link == Link_kReady -> register_request()
         :: link == 0 -> link = Link_kResolving
         :: else
         fi
       }
     }
  :: d_step { owner != ENGINE && !failure -> fail_request() }  // Abandon, or a deadline of the request

  // The link.
  :: d_step { link == Link_kResolving -> on_resolved() }
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
       :: else -> on_resolved()
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
       part != 0 && c_peer[peer] && p_incarnation_of[peer] != p_incarnation ->
       was_ready = (peer == c_connection);
       failure = true;
       settle_part(Part_kQuiescent);
       if
       :: was_ready -> end_link()
       :: else
       fi
     }
#endif
#ifdef PLANT_LEASE_IS_PROOF
  // Even if nothing is under way: the producer may have checked, and not yet posted.
  :: d_step {
       link == Link_kWaiting && part == Part_kOpen && !leased[peer] &&
       write[(registered - 1) * BATCHES] != Write_posted && write[(registered - 1) * BATCHES + 1] != Write_posted ->
       failure = true; settle_part(Part_kQuiescent)
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

inline keep(q, message, code) {
  if
  :: incarnation_of(q) != c_incarnation  // nobody will ask
#ifdef PLANT_FORGET
  :: consumer_connection[incarnation_of(q)] != NONE  // told, and that is that
#endif
#ifndef PLANT_KEEP_AFTER_DONE
  :: q < consumer_done[incarnation_of(q)]
#endif
  :: else -> outcome[q] = message; outcome_code[q] = code
  fi
}

#define is_of_transfer(q, y) (registration[q] != 0 && wants[q] == y)
#define has_registrations(y) \
  (is_of_transfer(0, y) || is_of_transfer(1, y) || is_of_transfer(2, y) || is_of_transfer(3, y))


#define is_free(y) (rank_left[y] && !has_registrations(y))

inline settle_transfer(y) {
  if
  :: has_registrations(y)
  :: else ->
     if
     :: source == y && (ending[y] || delivered[y]) ->  // SendEnded: the engine has its blocks again
        source = NONE; closed[y] = true; ending[y] = false; delivered[y] = false; bound_to[y] = NONE; rank_left[y] = false
     :: source != y -> bound_to[y] = NONE; rank_left[y] = false
     :: else
     fi
  fi
}

inline end_registration(q, is_delivered) {
  ended_twice = (registration[q] == 0);
  must_not(ended_twice);
  p_delivered = (p_delivered || (is_delivered && part != 0 && q == registered - 1));
  registration[q] = 0;
#ifndef PLANT_NO_CHECK
  cursor[q] = 0;
#endif
  revoked[q] = false;
  p_failure[q] = 0;
  failure_told[q] = false;
  if
  :: is_delivered -> delivered[wants[q]] = true; rank_left[wants[q]] = false
  :: else -> rank_left[wants[q]] = true
  fi;
  settle_transfer(wants[q]);
  forget(q)
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
     keep(q, Delivered, 0);
     answer(q, Delivered, 0);
     end_registration(q, true)
  :: registration[q] == Registration_kStopping && is_stopped(q) ->
     if
     :: p_failure[q] != 0 ->
        keep(q, Failed, p_failure[q]);
        if
        :: failure_told[q] -> answer(q, Quiet, 0)
        :: else -> answer(q, Failed, p_failure[q])
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

inline fail_registration(q, code) {
  if
  :: registration[q] == 0 || p_failure[q] != 0 || revoked[q]
  :: else ->
     p_failure[q] = code;
     registration[q] = Registration_kStopping;
     if
     :: in_flight[q] > 0 && consumer_connection[incarnation_of(q)] != NONE ->
        failure_told[q] = true;
        answer(q, Failed, OPEN + code)
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
  for (i : 0 .. REGISTRATIONS - 1) {
    if
    :: is_of_transfer(i, y) -> fail_registration(i, ErrorCode_kAborted)
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

#define is_posted_to(q, n) (registration[q] != 0 && made_in[q] == n && in_flight[q] > 0)
#define posted_to(n) (is_posted_to(0, n) || is_posted_to(1, n) || is_posted_to(2, n) || is_posted_to(3, n))

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
     for (i : 0 .. REGISTRATIONS - 1) {
       if
       :: registration[i] != 0 && made_in[i] == n -> fail_registration(i, ErrorCode_kPeerLost)
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
  :: closed[y] || ending[y] || (bound_to[y] != NONE && bound_to[y] != c_incarnation_of[n] && !is_free(y)) ->
     keep(q, Failed, ErrorCode_kAborted);
     answer(q, Failed, ErrorCode_kAborted);
     forget(q)
  :: else ->
     if
     :: bound_to[y] != c_incarnation_of[n] -> delivered[y] = false
     :: else
     fi;
     bound_to[y] = c_incarnation_of[n];
     rank_left[y] = false;
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
     :: outcome[q] != 0 -> tell_c(n, outcome[q], q, outcome_code[q])
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
#if LAPSES
     ask_for_renewal(n)
#else
     leased[n] = true  // for good, so that nobody need ask
#endif
  :: kind == Refused -> end_session(n)
  :: kind == Register -> on_register(n, a, b)
  :: kind == Revoke -> on_revoke(n, a)
  :: kind == Done ->
     consumer_done[c_incarnation_of[n]] = a;
     for (i : 0 .. REGISTRATIONS - 1) {
       if
       :: i < a && outcome[i] != 0 && incarnation_of(i) == c_incarnation_of[n] ->
          outcome[i] = 0; outcome_code[i] = 0; forget(i)
       :: else
       fi
     }
  :: kind == Renewed -> leased[n] = (a == term)
  fi
}

// A batch of registration q has ended; it left the wire in whatever state.
inline on_written(q, is_error) {
  if
  :: is_error ->
     is_cause = (p_failure[q] == 0 && !revoked[q]);
     if
     :: p_session[made_in[q]] != 0 -> up_to = made_in[q]; end_session(up_to)
     :: else
     fi;
     if
     :: is_cause -> p_failure[q] = ErrorCode_kTransportFailed
     :: else
     fi
  :: else
  fi;
  in_flight[q]--;
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
#define is_made_in(q, n) (registration[q] != 0 && made_in[q] == n)
#define wants_renewal(n) \
  (p_session[n] == ProducerSession_kReady && asked[n] < term + 1 && \
   (is_made_in(0, n) || is_made_in(1, n) || is_made_in(2, n) || is_made_in(3, n)))

// Steps choose a registration as r, or a write as x: one of those that a macro is true of.
#define any_registration(is) (is(0) || is(1) || is(2) || is(3))
#define any_write(is) (is(0) || is(1) || is(2) || is(3) || is(4) || is(5) || is(6) || is(7))
#define choose_registration(is) \
  if \
  :: is(0) -> r = 0 \
  :: is(1) -> r = 1 \
  :: is(2) -> r = 2 \
  :: is(3) -> r = 3 \
  fi
#define choose_write(is) \
  if \
  :: is(0) -> x = 0 \
  :: is(1) -> x = 1 \
  :: is(2) -> x = 2 \
  :: is(3) -> x = 3 \
  :: is(4) -> x = 4 \
  :: is(5) -> x = 5 \
  :: is(6) -> x = 6 \
  :: is(7) -> x = 7 \
  fi

#define is_waiting(q) (registration[q] == Registration_kWaiting)

// Of writes, by registration * BATCHES + batch.
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
  :: write[w] == Write_posted && is_reachable(connection_of(w)) -> write[w] = Write_stray
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
            for (i : 0 .. REGISTRATIONS - 1) {
              if
              :: is_waiting(i) && wants[i] == x -> start(i)
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
       checked == NONE && any_registration(is_waiting) ->
       choose_registration(is_waiting);
       d_step { fail_registration(r, ErrorCode_kAborted); r = 0 }
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
#if LAPSES
  :: d_step { checked == NONE && wants_renewal(0) -> ask_for_renewal(0) }
  :: d_step { checked == NONE && wants_renewal(1) -> ask_for_renewal(1) }
  :: d_step { checked == NONE && wants_renewal(2) -> ask_for_renewal(2) }
#endif

  // Writes.
  :: atomic {
       checked == NONE && any_registration(may_post) ->
       choose_registration(may_post);
       d_step { checked = r; r = 0 }
     }
  :: d_step {
       checked != NONE ->
       write[checked * BATCHES + cursor[checked]] = Write_posted;
       cursor[checked]++;
       in_flight[checked]++;
       checked = NONE
     }
  :: atomic {
       checked == NONE && any_write(is_done) ->
       choose_write(is_done);
       d_step { write[x] = 0; a = x / BATCHES; on_written(a, false); x = 0 }
     }
  :: atomic {
       checked == NONE && any_write(can_fail) ->
       choose_write(can_fail);
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
  :: atomic {  // drain_limit: the endpoint is closed
       checked == NONE && any_registration(is_stuck) ->
       choose_registration(is_stuck);
       d_step { p_peer[made_in[r]] = false; r = 0 }
     }
  od
}

// ---- everything else -------------------------------------------------------------------------------------------------

inline land(w) {
  landed_after_give_back = (owner == ENGINE || w / BATCHES < first);
  must_not(landed_after_give_back);
  landed_after_proof = is_late(w / BATCHES);
  must_not(landed_after_proof);
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
  for (i : 0 .. TRANSFERS - 1) {
    ending[i] = false;
    closed[i] = false;
    delivered[i] = false;
    bound_to[i] = NONE;
    rank_left[i] = false
  }
  for (i : 0 .. REGISTRATIONS * BATCHES - 1) {
    if
    :: write[i] == Write_posted -> lose_write(i)
    :: write[i] == Write_landed -> write[i] = 0
    :: else
    fi
  }
  for (i : 0 .. REGISTRATIONS - 1) {
    registration[i] = 0;
    cursor[i] = 0;
    in_flight[i] = 0;
    revoked[i] = false;
    p_failure[i] = 0;
    failure_told[i] = false;
    outcome[i] = 0;
    outcome_code[i] = 0;
    forget(i)
  }
  p_delivered = false;
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
#ifdef FENCING
  end_strays();
#endif
  // Nobody will ask for them; outcome_timeout ends them.
  for (i : 0 .. REGISTRATIONS - 1) { outcome[i] = 0; outcome_code[i] = 0; forget(i) }
  forget_part();
  if
  :: owner != ENGINE -> give_back()
  :: else
  fi
}

proctype World() {
end:
  do
  :: atomic {
       any_write(can_land) ->
       choose_write(can_land);
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
       any_write(is_stray) ->
       choose_write(is_stray);
       d_step {
         land(x);
         write[x] = 0;
         a = x / BATCHES;
         forget(a);
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
    never_ended = (received < REQUESTS || owner != ENGINE);
    must_not(never_ended);
    for (i : 0 .. REGISTRATIONS - 1) {
      never_ended = (registration[i] != 0);
      must_not(never_ended)
    }
    something_remains = (source != NONE || checked != NONE);
    must_not(something_remains);
    for (i : 0 .. REGISTRATIONS * BATCHES - 1) {
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
    for (i : 0 .. REGISTRATIONS - 1) {
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
  :: outcome[0] == Delivered && outcome[1] == Delivered
  :: received == 2 && first == 1 && part == Part_kRegistered && transfer == 0 && cursor[1] == BATCHES
  :: checked == 0 && !leased[made_in[0]]  // stopped between check and post while its lease ran out
  :: part == Part_kRevoking && cursor[0] == 1 && in_flight[0] == 1
  :: registration[0] == Registration_kWriting && made_in[0] == 0 && c_connection == 1  // one side knows of the loss
  :: is_unread(0) && c_connection == 1 && c_session == ConsumerSession_kReady && consumer_connection[0] == 0
  :: p_session[0] == ProducerSession_kNew && consumer_session[0] == 1  // its Hello is stale
  :: outcome[0] == Delivered && link == Link_kStarting
  :: failure_told[0] && part == Part_kOpen
  :: p_incarnation == 1 && registration[1] == Registration_kWriting
  :: c_incarnation == 1 && registration[0] == Registration_kStopping && registration[1] == Registration_kWaiting
  // Registered again.
  :: received == 1 && registered == 2 && cursor[1] == BATCHES
  :: received == 2 && first == 2 && cursor[2] == BATCHES
  :: loss && part == Part_kRevoking && write[0] == Write_posted  // not before this has ended
  :: loss && part == Part_kRevoking && p_delivered               // there is no need to
  :: loss && part == 0 && link == Link_kStarting                 // not before the session is ready
  :: loss && part == Part_kOpen && link_incarnation != p_incarnation  // there is nobody to ask
#ifdef FENCING
  :: received == 1 && registered == 2 && outcome_code[0] == ErrorCode_kTransportFailed  // which the fence may have done
  :: is_stray(0) && part == Part_kRegistered  // it may land until the consumer learns of it, and fences
  :: write[0] == Write_posted && first == 1 && registration[1] == Registration_kWriting
#else
  :: loss && part == Part_kRevoking && outcome_code[0] == ErrorCode_kTransportFailed  // it would fail again
  :: part == Part_kOpen && link == Link_kStarting && link_incarnation != registered_with
  :: write[0] == Write_posted && part == Part_kRevoking && peer != c_connection
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
