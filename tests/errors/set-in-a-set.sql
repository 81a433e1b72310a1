BEGIN STATEMENT SET;
SET millstream.exchange = 'merge';
SET millstream.slots = 16;
SET millstream.exchnge = 'shuffle';
END;
